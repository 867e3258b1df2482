# Makes the bundles that the tests of programs run, with the public writer: needs a Python with
# xxhash (Debian: python3-xxhash). Without it those tests skip themselves.
set(ACCRT_TEST_DATA "${CMAKE_BINARY_DIR}/tests/bundles")
set(ACCRT_TEST_PYTHON "")
foreach(candidate "${PROJECT_SOURCE_DIR}/.venv/bin/python" /usr/bin/python3 python3)
  if(NOT ACCRT_TEST_PYTHON)
    execute_process(COMMAND ${candidate} -c "import xxhash" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed STREQUAL "0")
      set(ACCRT_TEST_PYTHON "${candidate}")
    endif()
  endif()
endforeach()
if(NOT ACCRT_TEST_PYTHON)
  message(WARNING "no Python with xxhash: tests of programs are skipped (Debian: python3-xxhash)")
  return()
endif()

# A Python cannot load a sanitized library: there the bundles are made with one that is built
# beside, without.
set(ACCRT_WRITER_FOLDER "${CMAKE_BINARY_DIR}")
set(ACCRT_WRITER_DEPENDS accrt accrt_write)
if(ACCRT_SANITIZE)
  set(ACCRT_WRITER_FOLDER "${CMAKE_BINARY_DIR}/plain")
  set(ACCRT_WRITER_DEPENDS accrt_plain_writer)
  add_custom_target(accrt_plain_writer
    COMMAND "${CMAKE_COMMAND}" -S "${PROJECT_SOURCE_DIR}" -B "${ACCRT_WRITER_FOLDER}" -G "${CMAKE_GENERATOR}"
            "-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}" "-DCMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER}"
            -DACCRT_BUILD_TESTS=OFF -DACCRT_BUILD_TOOLS=OFF
    COMMAND "${CMAKE_COMMAND}" --build "${ACCRT_WRITER_FOLDER}" --target accrt_write
    COMMENT "Building a writer that is not sanitized" VERBATIM)
endif()
file(GLOB ACCRT_BUNDLE_WRITER CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/accrt/bundle_writer/*.py")
add_custom_command(
  OUTPUT "${ACCRT_TEST_DATA}/program.accx"
  COMMAND "${CMAKE_COMMAND}" -E env "ACCRT_LIBRARY=${ACCRT_WRITER_FOLDER}/lib/libaccrt.so"
          ${ACCRT_TEST_PYTHON} "${PROJECT_SOURCE_DIR}/tests/bundles/make.py" "${ACCRT_TEST_DATA}" "${CMAKE_C_COMPILER}"
  DEPENDS "${PROJECT_SOURCE_DIR}/tests/bundles/make.py" "${PROJECT_SOURCE_DIR}/tests/bundles/kernels.c"
          "${PROJECT_SOURCE_DIR}/tests/bundles/kernels.ptx"
          ${ACCRT_WRITER_DEPENDS} ${ACCRT_BUNDLE_WRITER} "${PROJECT_SOURCE_DIR}/include/accrt/kernel.h"
  COMMENT "Making bundles for tests" VERBATIM)
add_custom_target(accrt_test_bundles DEPENDS "${ACCRT_TEST_DATA}/program.accx")

# A pack of host operators that such a bundle names.
add_library(accrt_test_pack MODULE "${PROJECT_SOURCE_DIR}/tests/bundles/copies_pack.c")
set_target_properties(accrt_test_pack PROPERTIES PREFIX "" OUTPUT_NAME "tests.copies" C_VISIBILITY_PRESET hidden
                      LIBRARY_OUTPUT_DIRECTORY "${ACCRT_TEST_DATA}")
target_include_directories(accrt_test_pack PRIVATE "${PROJECT_SOURCE_DIR}/include")
target_link_libraries(accrt_test_pack PRIVATE accrt_flags ${CMAKE_DL_LIBS})
add_dependencies(accrt_test_bundles accrt_test_pack)
