# libaccrt_write.so and libaccrt_write.a: making bundles and changing them. The shared library
# stands on the public functions of libaccrt.so; what both have inside (accrt_format_objects) is
# linked hidden into each. Linked statically, libaccrt.a has it for both.
if(NOT TARGET accrt)
  return()
endif()
list(REMOVE_ITEM ACCRT_WRITE_SOURCES write/shared.c)
set_source_files_properties(${ACCRT_WRITE_SOURCES} write/shared.c PROPERTIES
                            COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-Oz>")
# The formulas of layouts are exact: no a * b + c becomes one operation.
set_source_files_properties(write/layout_encode.c write/layout_encode_k.c PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=off;$<$<NOT:$<CONFIG:Debug>>:-Os>")
add_library(accrt_write_objects OBJECT ${ACCRT_WRITE_SOURCES})
accrt_library_objects(accrt_write_objects)

# accrt_format: a file of it is in the library where something of it is needed.
add_library(accrt_format STATIC $<TARGET_OBJECTS:accrt_format_objects>)
set_target_properties(accrt_format PROPERTIES LINKER_LANGUAGE C)
accrt_library_above(write accrt SHARED_SOURCES write/shared.c PRIVATE $<BUILD_INTERFACE:accrt_format> m)
accrt_library_objects(accrt_write)
