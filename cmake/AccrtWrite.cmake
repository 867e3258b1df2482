# libaccrt_write.so and libaccrt_write.a: making bundles and changing them. The shared library stands on the public functions of
# libaccrt.so; what both have inside (accrt_format_objects) is linked hidden into each. Linked statically, libaccrt.a has it for both.
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
add_library(accrt_write SHARED $<TARGET_OBJECTS:accrt_write_objects> write/shared.c)
accrt_library_objects(accrt_write)
set(ACCRT_WRITE_VERSION_SCRIPT "${PROJECT_SOURCE_DIR}/abi/libaccrt_write.map")
set_target_properties(accrt_write PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      EXPORT_NAME write LINKER_LANGUAGE C LINK_DEPENDS "${ACCRT_WRITE_VERSION_SCRIPT}"
                      BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
target_include_directories(accrt_write INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_options(accrt_write PRIVATE ${ACCRT_LINK_OPTIONS} "-Wl,--version-script=${ACCRT_WRITE_VERSION_SCRIPT}")
target_link_libraries(accrt_write PRIVATE $<BUILD_INTERFACE:accrt_format> m PUBLIC accrt)

add_library(accrt_write_static STATIC $<TARGET_OBJECTS:accrt_write_objects>)
set_target_properties(accrt_write_static PROPERTIES OUTPUT_NAME accrt_write EXPORT_NAME write_static LINKER_LANGUAGE C)
target_include_directories(accrt_write_static INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_libraries(accrt_write_static INTERFACE accrt_static)

add_library(accrt::write ALIAS accrt_write)
add_library(accrt::write_static ALIAS accrt_write_static)
