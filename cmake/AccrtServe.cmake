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

add_library(accrt_serve SHARED $<TARGET_OBJECTS:accrt_serve_objects>)
set(ACCRT_SERVE_VERSION_SCRIPT "${PROJECT_SOURCE_DIR}/abi/libaccrt_serve.map")
set_target_properties(accrt_serve PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      EXPORT_NAME serve LINKER_LANGUAGE C LINK_DEPENDS "${ACCRT_SERVE_VERSION_SCRIPT}"
                      BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
target_include_directories(accrt_serve INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_options(accrt_serve PRIVATE ${ACCRT_LINK_OPTIONS} "-Wl,--version-script=${ACCRT_SERVE_VERSION_SCRIPT}")
target_link_libraries(accrt_serve PRIVATE Threads::Threads PUBLIC accrt)

add_library(accrt_serve_static STATIC $<TARGET_OBJECTS:accrt_serve_objects>)
set_target_properties(accrt_serve_static PROPERTIES OUTPUT_NAME accrt_serve EXPORT_NAME serve_static LINKER_LANGUAGE C)
target_include_directories(accrt_serve_static INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_libraries(accrt_serve_static INTERFACE accrt_static)

add_library(accrt::serve ALIAS accrt_serve)
add_library(accrt::serve_static ALIAS accrt_serve_static)
