# Installs headers, libraries, the tool, the CMake package, the pkg-config file and the conformance
# suite's sources for driver authors.
if(NOT TARGET accrt)
  return()
endif()
include(CMakePackageConfigHelpers)
set(ACCRT_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/accrt")

install(TARGETS accrt accrt_static accrt_write accrt_write_static accrt_serve accrt_serve_static EXPORT accrtTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET accrt_http)
  install(FILES serve/http/LICENSE.llhttp DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  install(TARGETS accrt_http accrt_http_static EXPORT accrtTargets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(DIRECTORY include/accrt DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING
        PATTERN "*.h")
install(EXPORT accrtTargets NAMESPACE accrt:: DESTINATION "${ACCRT_CMAKE_DIR}")

configure_package_config_file(cmake/accrtConfig.cmake.in "${CMAKE_BINARY_DIR}/accrtConfig.cmake"
                              INSTALL_DESTINATION "${ACCRT_CMAKE_DIR}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/accrtConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/accrtConfig.cmake"
        "${CMAKE_BINARY_DIR}/accrtConfigVersion.cmake" DESTINATION "${ACCRT_CMAKE_DIR}")

# Relative to the .pc file, so that an installed tree may be moved.
file(RELATIVE_PATH ACCRT_PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
     "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" ACCRT_PC_PREFIX "${ACCRT_PC_PREFIX}")
foreach(name accrt accrt_write accrt_serve accrt_http)
  configure_file(cmake/${name}.pc.in "${CMAKE_BINARY_DIR}/${name}.pc" @ONLY)
endforeach()
install(FILES "${CMAKE_BINARY_DIR}/accrt.pc" "${CMAKE_BINARY_DIR}/accrt_write.pc" "${CMAKE_BINARY_DIR}/accrt_serve.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(TARGET accrt_http)
  install(FILES "${CMAKE_BINARY_DIR}/accrt_http.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

if(TARGET accx)
  install(TARGETS accx RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # What the tool prints of its own tables: completion and the manual page.
  if(NOT CMAKE_CROSSCOMPILING AND NOT ACCRT_SANITIZE)
    set(ACCX_WORDS "${CMAKE_BINARY_DIR}/words")
    file(MAKE_DIRECTORY "${ACCX_WORDS}")
    add_custom_command(TARGET accx POST_BUILD VERBATIM
      COMMAND sh -c "for shell in bash zsh fish; do \"$0\" completion $shell >\"$1/$shell\"; done; \"$0\" manual >\"$1/accx.1\""
              "$<TARGET_FILE:accx>" "${ACCX_WORDS}")
    install(FILES "${ACCX_WORDS}/accx.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
    install(FILES "${ACCX_WORDS}/bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME accx)
    install(FILES "${ACCX_WORDS}/zsh" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" RENAME _accx)
    install(FILES "${ACCX_WORDS}/fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" RENAME accx.fish)
  endif()
endif()
if(TARGET accrt-sandbox)
  install(TARGETS accrt-sandbox RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/cts")
  install(DIRECTORY tests/cts/ DESTINATION "${CMAKE_INSTALL_DATADIR}/accrt/cts")
endif()
# What the headers cite as docs/..., with the links between the documents as in the repository.
install(FILES LICENSE README.md CHANGELOG.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md"
        PATTERN "*.svg" PATTERN "site" EXCLUDE)
install(DIRECTORY examples/guide DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")
