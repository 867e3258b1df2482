# libaccrt_http.so and libaccrt_http.a: the HTTP server before an engine. It stands on the public
# functions of libaccrt_serve.so and libaccrt.so. The parser is llhttp, hidden inside: its sources
# (Debian 12: node-llhttp), else its archive or library (libllhttp-dev).
if(NOT TARGET accrt_serve)
  return()
endif()
find_path(ACCRT_LLHTTP_INCLUDE llhttp.h PATH_SUFFIXES llhttp
          PATHS /usr/share/include /usr/local/share/include)
find_path(ACCRT_LLHTTP_SOURCES llhttp.c PATHS /usr/share/llhttp /usr/local/share/llhttp NO_DEFAULT_PATH)
find_library(ACCRT_LLHTTP_LIBRARY NAMES libllhttp.a llhttp)
if(ACCRT_LLHTTP_INCLUDE AND ACCRT_LLHTTP_SOURCES)
  set(ACCRT_LLHTTP_OBJECTS $<TARGET_OBJECTS:accrt_llhttp>)
  add_library(accrt_llhttp OBJECT "${ACCRT_LLHTTP_SOURCES}/api.c" "${ACCRT_LLHTTP_SOURCES}/http.c"
              "${ACCRT_LLHTTP_SOURCES}/llhttp.c")
  set_target_properties(accrt_llhttp PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(accrt_llhttp PRIVATE "${ACCRT_LLHTTP_INCLUDE}")
  target_compile_options(accrt_llhttp PRIVATE ${ACCRT_SANITIZE_FLAGS} -w)
  # From version 9 on it is always strict: without this, anything may follow a chunk, and names of
  # headers may have spaces.
  target_compile_definitions(accrt_llhttp PRIVATE LLHTTP_STRICT_MODE=1)
elseif(ACCRT_LLHTTP_INCLUDE AND ACCRT_LLHTTP_LIBRARY)
  set(ACCRT_LLHTTP_LINKED "${ACCRT_LLHTTP_LIBRARY}")
else()
  message(STATUS "libaccrt_http is left out: it needs llhttp (Debian: node-llhttp or libllhttp-dev). Everything else builds.")
  return()
endif()

file(GLOB ACCRT_HTTP_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/serve/http/*.c")
list(FILTER ACCRT_HTTP_SOURCES EXCLUDE REGEX "_test\\.c$")
add_library(accrt_http_objects OBJECT ${ACCRT_HTTP_SOURCES})
accrt_library_objects(accrt_http_objects)
set(ACCRT_HTTP_BODIES ${ACCRT_HTTP_SOURCES})
list(REMOVE_ITEM ACCRT_HTTP_BODIES serve/http/entries.c)
set_property(SOURCE ${ACCRT_HTTP_BODIES} APPEND PROPERTY
             COMPILE_OPTIONS -include "${PROJECT_SOURCE_DIR}/serve/http/bodies.h")
set_property(SOURCE ${ACCRT_HTTP_BODIES} APPEND PROPERTY
             OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/serve/http/bodies.h")
# They run a few times for each token at most, or read a byte at a time, no faster than a model
# writes.
set_property(SOURCE serve/http/forms.c serve/http/harmony.c serve/http/literals.c serve/http/mark_reader.c serve/http/response.c serve/http/thoughts.c serve/http/tools.c serve/http/values.c APPEND PROPERTY
             COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-Os>")
target_include_directories(accrt_http_objects SYSTEM PRIVATE "${ACCRT_LLHTTP_INCLUDE}")
# What both have inside is linked hidden into each; linked statically, libaccrt_serve.a has it for
# both.
accrt_library_above(http accrt_serve OBJECTS ${ACCRT_LLHTTP_OBJECTS} SHARED_SOURCES runtime/core/assertion.c serve/base.c serve/handles.c PRIVATE Threads::Threads ${ACCRT_LLHTTP_LINKED}
                    INTERFACE ${ACCRT_LLHTTP_LINKED})
accrt_library_objects(accrt_http)
