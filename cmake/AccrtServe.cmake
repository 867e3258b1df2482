# libaccrt_serve.so and libaccrt_serve.a: the engine that generates tokens for many requests at
# once. It stands on the public functions of libaccrt.so. How files are opened
# (runtime/core/safe_open.c) is linked hidden into it, as into libaccrt_write.so.
if(NOT TARGET accrt)
  return()
endif()
file(GLOB ACCRT_SERVE_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/serve/*.c")
list(FILTER ACCRT_SERVE_SOURCES EXCLUDE REGEX "_test\\.c$")
list(REMOVE_ITEM ACCRT_SERVE_SOURCES serve/shared.c)
add_library(accrt_serve_objects OBJECT ${ACCRT_SERVE_SOURCES})
accrt_library_objects(accrt_serve_objects)
# Entry points are generated (serve/entries.c); the functions behind them have other names for the
# linker, as those of libaccrt.
set(ACCRT_SERVE_BODIES ${ACCRT_SERVE_SOURCES})
list(REMOVE_ITEM ACCRT_SERVE_BODIES serve/api.c serve/base.c serve/entries.c serve/handles.c)
set_property(SOURCE ${ACCRT_SERVE_BODIES} APPEND PROPERTY
             COMPILE_OPTIONS -include "${PROJECT_SOURCE_DIR}/serve/bodies.h")
set_property(SOURCE ${ACCRT_SERVE_BODIES} APPEND PROPERTY
             OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/serve/bodies.h")
# What runs when something is made, loaded or read, and in no step, is compiled for size.
set_property(SOURCE serve/adapters.c serve/api.c serve/counters.c serve/program_adapters.c serve/step_program.c APPEND PROPERTY
             COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-Os>")
accrt_library_above(serve accrt SHARED_SOURCES serve/shared.c runtime/core/assertion.c PRIVATE $<BUILD_INTERFACE:accrt_format> Threads::Threads m)
accrt_library_objects(accrt_serve)
