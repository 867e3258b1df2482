# build/bin/accx, the command-line tool. It stands on the public headers and the shared library
# alone, and on the text form of bundles (cmake/AccrtText.cmake); json-c and libzip are its own
# dependencies, never the library's.
file(GLOB ACCX_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tools/accx/*.c")
list(FILTER ACCX_SOURCES EXCLUDE REGEX "_test\\.c$")
if(NOT ACCX_SOURCES OR NOT TARGET accrt)
  return()
endif()

find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(JSONC IMPORTED_TARGET json-c)
  pkg_check_modules(LIBZIP IMPORTED_TARGET libzip)
endif()
if(NOT TARGET PkgConfig::JSONC OR NOT TARGET PkgConfig::LIBZIP OR NOT TARGET accrt_text)
  message(WARNING "the accx tool is left out: it needs pkg-config, json-c, libzip and libyaml "
                  "(Debian: pkg-config libjson-c-dev libzip-dev libyaml-dev). The library and the C tests still build.")
  return()
endif()

add_executable(accx ${ACCX_SOURCES})
target_compile_definitions(accx PRIVATE ACCRT_BUILD_VERSION="${PROJECT_VERSION}")
target_link_libraries(accx PRIVATE accrt_text accrt accrt_flags PkgConfig::JSONC PkgConfig::LIBZIP m)
file(RELATIVE_PATH ACCX_TO_LIB "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set_target_properties(accx PROPERTIES BUILD_RPATH "$ORIGIN/../lib"
                      INSTALL_RPATH "$ORIGIN/${ACCX_TO_LIB}")
