# libaccrt.so and libaccrt.a from one set of objects. The library may link libc, pthread, dl and m
# only; xxHash is used header-only at build time.
file(GLOB_RECURSE ACCRT_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/runtime/*.c" "${CMAKE_CURRENT_SOURCE_DIR}/loader/*.c"
     "${CMAKE_CURRENT_SOURCE_DIR}/abi/*.c")
list(FILTER ACCRT_SOURCES EXCLUDE REGEX "_test\\.c$")
# A library of its own: cmake/AccrtText.cmake.
list(FILTER ACCRT_SOURCES EXCLUDE REGEX "^loader/text/")
if(NOT ACCRT_CUDA_BUILT)
  list(FILTER ACCRT_SOURCES EXCLUDE REGEX "^runtime/drivers/cuda/")
endif()

if(NOT ACCRT_SOURCES)
  message(WARNING "no library sources under runtime/, loader/ or abi/: only configuring")
  return()
endif()

# VERSION is where the version is set; the header repeats it for the preprocessor.
if(EXISTS "${PROJECT_SOURCE_DIR}/include/accrt/base.h")
  file(STRINGS include/accrt/base.h ACCRT_HEADER_VERSION
       REGEX "^#define ACCRT_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" ACCRT_HEADER_VERSION "${ACCRT_HEADER_VERSION}")
  string(REPLACE ";" "." ACCRT_HEADER_VERSION "${ACCRT_HEADER_VERSION}")
  if(NOT ACCRT_HEADER_VERSION STREQUAL PROJECT_VERSION)
    message(FATAL_ERROR "include/accrt/base.h says version ${ACCRT_HEADER_VERSION}, "
                        "VERSION says ${PROJECT_VERSION}")
  endif()
endif()

include(CheckIncludeFile)
check_include_file(xxhash.h ACCRT_HAVE_XXHASH_H)
if(NOT ACCRT_HAVE_XXHASH_H)
  message(FATAL_ERROR "xxhash.h not found: install libxxhash-dev (header only, nothing is linked)")
endif()

add_library(accrt_objects OBJECT ${ACCRT_SOURCES})
set_target_properties(accrt_objects PROPERTIES POSITION_INDEPENDENT_CODE ON
                      C_VISIBILITY_PRESET hidden)
target_include_directories(accrt_objects PRIVATE "${PROJECT_SOURCE_DIR}"
                           "${PROJECT_SOURCE_DIR}/include")
target_compile_definitions(accrt_objects PRIVATE ACCRT_BUILDING=1
                           ACCRT_BUILD_VERSION="${PROJECT_VERSION}")
if(ACCRT_CUDA_BUILT)
  target_compile_definitions(accrt_objects PRIVATE ACCRT_CUDA=1)
  target_include_directories(accrt_objects SYSTEM PRIVATE "${ACCRT_CUDA_INCLUDE_DIR}")
endif()
target_compile_options(accrt_objects PRIVATE -fno-semantic-interposition -ffunction-sections
                       -fdata-sections)
# Unwind tables would be a ninth of the library: debuggers have theirs with the debug information, and
# nothing is thrown through C.
if(NOT ACCRT_SANITIZE)
  target_compile_options(accrt_objects PRIVATE -fno-asynchronous-unwind-tables)
endif()
target_link_libraries(accrt_objects PRIVATE accrt_flags Threads::Threads)
# What runs once (opening, verifying, planning, messages) is compiled for size, what runs at each call
# for speed: the library stays small (tests/abi/size.sh) at no cost to a launch. A file that is not
# named here is cold.
set(ACCRT_HOT_SOURCES
    runtime/core/sync
    "runtime/memory/(buffer|lane)"
    "runtime/drivers/common/(event|launch|point|stream|timeline|worker)"
    "runtime/drivers/cuda/(copy|event|graph\\.|graph_patch|launch|poller|queue)"
    "runtime/drivers/host/(lanes|queue|run|units|workers)"
    "runtime/program/(call|expr|graph|plan_cache|run)")
list(JOIN ACCRT_HOT_SOURCES "|" ACCRT_HOT_PATTERN)
foreach(source IN LISTS ACCRT_SOURCES)
  if(NOT source MATCHES "^(${ACCRT_HOT_PATTERN})")
    set(size -Oz) # what takes long on large files is not compiled for the very least size
    if(source MATCHES "^(loader/(data|encryption|layout|open|tree|verify)|runtime/core)" AND
       NOT source MATCHES "^runtime/core/hash128")
      set(size -Os)
    endif()
    set_source_files_properties(${source} PROPERTIES
                                COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:${size}>")
  endif()
endforeach()
# The formulas of layouts are exact: no a * b + c becomes one operation.
set_source_files_properties(loader/layout_decode.c PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=off;$<$<NOT:$<CONFIG:Debug>>:-O2>")
set_source_files_properties(loader/layout_encode.c loader/layout_encode_k.c PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=off;$<$<NOT:$<CONFIG:Debug>>:-Os>")
# gcc unrolls the digest's loop at -O3 only: weights that are in memory are checked in three quarters
# of the time.
set_source_files_properties(runtime/core/hash128_update.c PROPERTIES
                            COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")

set(ACCRT_PUBLIC_INCLUDE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
set(ACCRT_VERSION_SCRIPT "${PROJECT_SOURCE_DIR}/abi/libaccrt.map")

add_library(accrt SHARED $<TARGET_OBJECTS:accrt_objects>)
set_target_properties(accrt PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE C)
target_include_directories(accrt INTERFACE ${ACCRT_PUBLIC_INCLUDE})
# Functions of the library call one another directly: a second copy of it in the process, of whatever
# version, must not be entered half-way.
target_link_options(accrt PRIVATE -Wl,--gc-sections -Wl,-z,noseparate-code -Wl,-z,relro -Wl,-z,now
                    -Wl,-Bsymbolic-functions ${ACCRT_SANITIZE_FLAGS})
if(NOT ACCRT_SANITIZE)
  target_link_options(accrt PRIVATE -Wl,--no-undefined)
endif()
if(EXISTS "${ACCRT_VERSION_SCRIPT}")
  target_link_options(accrt PRIVATE "-Wl,--version-script=${ACCRT_VERSION_SCRIPT}")
  set_target_properties(accrt PROPERTIES LINK_DEPENDS "${ACCRT_VERSION_SCRIPT}")
else()
  message(WARNING "abi/libaccrt.map is missing: symbols are exported without versions")
endif()
target_link_libraries(accrt PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(accrt_static STATIC $<TARGET_OBJECTS:accrt_objects>)
set_target_properties(accrt_static PROPERTIES OUTPUT_NAME accrt LINKER_LANGUAGE C)
target_include_directories(accrt_static INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_libraries(accrt_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(accrt::accrt ALIAS accrt)
add_library(accrt::accrt_static ALIAS accrt_static)
