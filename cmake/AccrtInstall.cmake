# Installs headers, libraries, the tool, the CMake package, the pkg-config file and the conformance
# suite's sources for driver authors.
if(NOT TARGET accrt)
  return()
endif()
include(CMakePackageConfigHelpers)
set(ACCRT_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/accrt")

install(TARGETS accrt accrt_static EXPORT accrtTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
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
configure_file(cmake/accrt.pc.in "${CMAKE_BINARY_DIR}/accrt.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/accrt.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(TARGET accx)
  install(TARGETS accx RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/cts")
  install(DIRECTORY tests/cts/ DESTINATION "${CMAKE_INSTALL_DATADIR}/accrt/cts")
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
