# build/bin/accx, the command-line tool. It stands on the public headers and the shared library
# alone, and on the text form of bundles (cmake/AccrtText.cmake); json-c and zlib are its own
# dependencies, never the library's.
file(GLOB ACCX_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tools/accx/*.c")
list(FILTER ACCX_SOURCES EXCLUDE REGEX "_test\\.c$")
if(NOT ACCX_SOURCES OR NOT TARGET accrt)
  return()
endif()

find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(JSONC IMPORTED_TARGET json-c)
  pkg_check_modules(ZLIB IMPORTED_TARGET zlib)
endif()
if(NOT TARGET PkgConfig::JSONC OR NOT TARGET PkgConfig::ZLIB OR NOT TARGET accrt_text)
  message(WARNING "the accx tool is left out: it needs pkg-config, json-c, zlib and libyaml "
                  "(Debian: pkg-config libjson-c-dev zlib1g-dev libyaml-dev). The library and the C tests still build.")
  return()
endif()

add_executable(accx ${ACCX_SOURCES})
target_compile_definitions(accx PRIVATE ACCRT_BUILD_VERSION="${PROJECT_VERSION}")
target_link_libraries(accx PRIVATE accrt_flags accrt_text)
if(ACCRT_TOOL_STATIC)
  # By the full names of the archives: a search would prefer the shared libraries beside them.
  foreach(name json-c z)
    find_library(ACCX_LIB_${name} NAMES lib${name}.a HINTS ${JSONC_LIBRARY_DIRS} ${ZLIB_LIBRARY_DIRS})
    if(NOT ACCX_LIB_${name})
      message(FATAL_ERROR "ACCRT_TOOL_STATIC needs lib${name}.a (Debian: libjson-c-dev zlib1g-dev)")
    endif()
    list(APPEND ACCX_ARCHIVES "${ACCX_LIB_${name}}")
  endforeach()
  target_include_directories(accx SYSTEM PRIVATE ${JSONC_INCLUDE_DIRS} ${ZLIB_INCLUDE_DIRS})
  target_link_libraries(accx PRIVATE accrt_write_static accrt_static ${ACCX_ARCHIVES} m)
else()
  target_link_libraries(accx PRIVATE accrt_write accrt PkgConfig::JSONC PkgConfig::ZLIB m)
endif()
file(RELATIVE_PATH ACCX_TO_LIB "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
if(ACCRT_TOOL_STATIC)
  return()
endif()
# The build folder has bin/ and lib/. A build's own RPATH would end with the current folder
# (cmake/AccrtLibrary.cmake).
set(ACCX_RPATH "$ORIGIN/${ACCX_TO_LIB}" "$ORIGIN/../lib")
list(REMOVE_DUPLICATES ACCX_RPATH)
set_target_properties(accx PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${ACCX_RPATH}")
