# libaccrt.so and libaccrt.a from one set of objects. The library may link libc, pthread, dl and m
# only; xxHash is used header-only at build time. libaccrt_write.so stands on it:
# cmake/AccrtWrite.cmake.
file(GLOB_RECURSE ACCRT_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/runtime/*.c" "${CMAKE_CURRENT_SOURCE_DIR}/loader/*.c"
     "${CMAKE_CURRENT_SOURCE_DIR}/format/*.c" "${CMAKE_CURRENT_SOURCE_DIR}/abi/*.c")
list(FILTER ACCRT_SOURCES EXCLUDE REGEX "_test\\.c$")
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

# accrt_library_objects(target): compiled as all of the libraries is.
function(accrt_library_objects target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  target_compile_definitions(${target} PRIVATE ACCRT_BUILDING=1 ACCRT_BUILD_VERSION="${PROJECT_VERSION}")
  target_compile_options(${target} PRIVATE -fno-semantic-interposition -ffunction-sections -fdata-sections)
  # Error records name the file within the project, wherever it was built. (ccache may give the
  # compiler relative paths.)
  file(RELATIVE_PATH back "${CMAKE_BINARY_DIR}" "${PROJECT_SOURCE_DIR}")
  target_compile_options(${target} PRIVATE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=" "-fmacro-prefix-map=${back}=")
  # Unwind tables would be a ninth of the library: debuggers have theirs with the debug information,
  # and nothing is thrown through C.
  if(NOT ACCRT_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-asynchronous-unwind-tables)
  endif()
  target_link_libraries(${target} PRIVATE accrt_flags Threads::Threads)
endfunction()

# accrt_library_above(part below [OBJECTS objects...] [SHARED_SOURCES files...] [PRIVATE
# libraries...] [INTERFACE libraries...]): libaccrt_<part>.so and .a from accrt_<part>_objects, on
# the public functions of the library below. OBJECTS are in both; PRIVATE is linked into the shared
# one, INTERFACE is what who links the static one needs. (CMake ends a build's own RPATH with ':',
# which is the current folder: what dlopen looks for by a name would be found there. The installed
# one has no such end.)
function(accrt_library_above part below)
  cmake_parse_arguments(PARSE_ARGV 2 its "" "" "OBJECTS;SHARED_SOURCES;PRIVATE;INTERFACE")
  set(name accrt_${part})
  set(version_script "${PROJECT_SOURCE_DIR}/abi/lib${name}.map")
  add_library(${name} SHARED $<TARGET_OBJECTS:${name}_objects> ${its_OBJECTS} ${its_SHARED_SOURCES})
  set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                        EXPORT_NAME ${part} LINKER_LANGUAGE C LINK_DEPENDS "${version_script}"
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  target_link_options(${name} PRIVATE ${ACCRT_LINK_OPTIONS} "-Wl,--version-script=${version_script}")
  target_link_libraries(${name} PRIVATE ${its_PRIVATE} PUBLIC ${below})

  add_library(${name}_static STATIC $<TARGET_OBJECTS:${name}_objects> ${its_OBJECTS})
  set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${name} EXPORT_NAME ${part}_static LINKER_LANGUAGE C)
  target_link_libraries(${name}_static INTERFACE ${below}_static ${its_INTERFACE})
  foreach(target ${name} ${name}_static)
    target_include_directories(${target} INTERFACE ${ACCRT_PUBLIC_INCLUDE})
  endforeach()
  add_library(accrt::${part} ALIAS ${name})
  add_library(accrt::${part}_static ALIAS ${name}_static)
endfunction()

# What libaccrt and libaccrt_write both have inside, hidden in each: format/, and files that keep no
# state.
set(ACCRT_FORMAT_SOURCES ${ACCRT_SOURCES})
list(FILTER ACCRT_FORMAT_SOURCES INCLUDE REGEX
     "^(format/|abi/api_fill\\.|runtime/core/(arch|cpu|crypto|elf_check|error_fill|file_io|guard|hash128|hash128_update|memory|meter|near_name|pack_check|put_file|safe_open|sha256|struct|utf8)\\.c)")
set(ACCRT_OWN_SOURCES ${ACCRT_SOURCES})
list(REMOVE_ITEM ACCRT_OWN_SOURCES ${ACCRT_FORMAT_SOURCES})

# Names of the sources of both libraries, in both.
file(GLOB ACCRT_WRITE_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
     "${CMAKE_CURRENT_SOURCE_DIR}/write/*.c")
list(FILTER ACCRT_WRITE_SOURCES EXCLUDE REGEX "_test\\.c$")
include(cmake/AccrtPlaces.cmake)
accrt_number_sources(ACCRT_ERROR_FILES ${ACCRT_SOURCES} ${ACCRT_WRITE_SOURCES})
add_library(accrt_format_objects OBJECT ${ACCRT_FORMAT_SOURCES} "${ACCRT_ERROR_FILES}")
accrt_library_objects(accrt_format_objects)
add_library(accrt_objects OBJECT ${ACCRT_OWN_SOURCES})
accrt_library_objects(accrt_objects)
if(ACCRT_CUDA_BUILT)
  target_compile_definitions(accrt_objects PRIVATE ACCRT_CUDA=1)
  target_include_directories(accrt_objects SYSTEM PRIVATE "${ACCRT_CUDA_INCLUDE_DIR}")
endif()
# The rule: a file is compiled for size. What runs at each call is compiled for speed: the library
# stays small (tests/abi/size.sh) at no cost to a launch.
set(ACCRT_HOT_SOURCES
    "runtime/core/(context|guard|sync)"
    "runtime/memory/buffer"
    "runtime/drivers/common/(event|launch|point|stream_(feed|op|settle|wait)|timeline)"
    "runtime/drivers/cuda/(event|graph_patch|launch|queue)"
    "runtime/drivers/host/(list|queue|run|units|workers)"
    "runtime/program/(call|expr|plan_cache|run)")
list(JOIN ACCRT_HOT_SOURCES "|" ACCRT_HOT_PATTERN)
set(ACCRT_SIZE_OPTIONS -Oz)
set(ACCRT_SPEED_OPTIONS)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # gcc's -Oz still does these, and they grow our files by two or three in a hundred.
  # Without sibling calls, a function whose last act is a call makes a plain call and returns:
  # smaller than the jump, for what was saved is restored in one place.
  list(APPEND ACCRT_SIZE_OPTIONS -fno-optimize-sibling-calls -fno-inline-functions-called-once -fno-caller-saves
       -fno-tree-dominator-opts -fno-tree-sra -fno-split-paths -fno-move-loop-invariants
       -fno-tree-loop-im -fno-tree-forwprop -fno-tree-tail-merge --param=case-values-threshold=20)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND ACCRT_SIZE_OPTIONS -malign-data=abi)
  endif()
  # Functions begin on 16 bytes, and nothing within them.
  list(APPEND ACCRT_SPEED_OPTIONS -fno-align-loops -fno-align-jumps)
endif()
foreach(source IN LISTS ACCRT_SOURCES)
  set(options ${ACCRT_SIZE_OPTIONS})
  if(source MATCHES "^(${ACCRT_HOT_PATTERN})")
    set(options ${ACCRT_SPEED_OPTIONS})
  endif()
  set_source_files_properties(${source} PROPERTIES
                              COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:${options}>")
endforeach()
# The formulas of layouts are exact: no a * b + c becomes one operation.
set_source_files_properties(loader/layout_decode.c PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=off;$<$<NOT:$<CONFIG:Debug>>:-O2;${ACCRT_SPEED_OPTIONS}>")
set_source_files_properties(format/layout_block.c PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=off;$<$<NOT:$<CONFIG:Debug>>:-Os>")
# gcc unrolls the digest's loop at -O3 only: weights that are in memory are checked in three
# quarters of the time.
set_source_files_properties(runtime/core/hash128_update.c PROPERTIES
                            COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")

# Instructions of its own are in it (abi/watch_entry.h), which the link-time optimizer would lose.
set_property(SOURCE abi/api.c abi/entries.c abi/watch_call.c APPEND PROPERTY COMPILE_OPTIONS -fno-lto)
# Entry points are generated (abi/entries.c). The functions behind them have other names for the
# linker, so that functions of the library call one another and not entry points.
set(ACCRT_BODIES ${ACCRT_SOURCES})
list(FILTER ACCRT_BODIES EXCLUDE REGEX "^abi/")
set_property(SOURCE ${ACCRT_BODIES} APPEND PROPERTY
             COMPILE_OPTIONS -include "${PROJECT_SOURCE_DIR}/abi/bodies.h")
set_property(SOURCE ${ACCRT_BODIES} APPEND PROPERTY
             OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/abi/bodies.h")

set(ACCRT_PUBLIC_INCLUDE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
set(ACCRT_VERSION_SCRIPT "${PROJECT_SOURCE_DIR}/abi/libaccrt.map")

add_library(accrt SHARED $<TARGET_OBJECTS:accrt_objects> $<TARGET_OBJECTS:accrt_format_objects>)
set_target_properties(accrt PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} LINKER_LANGUAGE C)
target_include_directories(accrt INTERFACE ${ACCRT_PUBLIC_INCLUDE})
# Functions of the library call one another directly: a second copy of it in the process, of
# whatever version, must not be entered half-way.
set(ACCRT_LINK_OPTIONS -Wl,--gc-sections -Wl,-z,noseparate-code -Wl,-z,relro -Wl,-z,now
    -Wl,-Bsymbolic-functions ${ACCRT_SANITIZE_FLAGS})
if(NOT ACCRT_SANITIZE)
  list(APPEND ACCRT_LINK_OPTIONS -Wl,--no-undefined)
endif()
target_link_options(accrt PRIVATE ${ACCRT_LINK_OPTIONS})
if(EXISTS "${ACCRT_VERSION_SCRIPT}")
  target_link_options(accrt PRIVATE "-Wl,--version-script=${ACCRT_VERSION_SCRIPT}")
  set_target_properties(accrt PROPERTIES LINK_DEPENDS "${ACCRT_VERSION_SCRIPT}")
else()
  message(WARNING "abi/libaccrt.map is missing: symbols are exported without versions")
endif()
target_link_libraries(accrt PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(accrt_static STATIC $<TARGET_OBJECTS:accrt_objects> $<TARGET_OBJECTS:accrt_format_objects>)
set_target_properties(accrt_static PROPERTIES OUTPUT_NAME accrt LINKER_LANGUAGE C)
target_include_directories(accrt_static INTERFACE ${ACCRT_PUBLIC_INCLUDE})
target_link_libraries(accrt_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(accrt::accrt ALIAS accrt)
add_library(accrt::accrt_static ALIAS accrt_static)
