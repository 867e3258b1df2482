# libaccrt_serve.so and libaccrt_serve.a: the engine that generates tokens for many requests at once. It stands on the public
# functions of libaccrt.so and has nothing of it inside.
if(NOT TARGET accrt)
  return()
endif()
file(GLOB ACCRT_SERVE_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/serve/*.c")
list(FILTER ACCRT_SERVE_SOURCES EXCLUDE REGEX "_test\\.c$")
add_library(accrt_serve_objects OBJECT ${ACCRT_SERVE_SOURCES})
accrt_library_objects(accrt_serve_objects)
accrt_library_above(serve accrt PRIVATE Threads::Threads m)
