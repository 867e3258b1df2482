# Registers every C test it finds with CTest. A test is one CMocka executable made of one source
# file; its label is its folder, so `ctest -L runtime/core` runs one part.
find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
endif()
if(NOT TARGET PkgConfig::CMOCKA)
  message(WARNING "the C tests are left out: they need pkg-config and CMocka "
                  "(Debian: pkg-config libcmocka-dev). The library and the tool still build.")
  return()
endif()
if(NOT TARGET accrt)
  return()
endif()

include(cmake/AccrtTestBundles.cmake)

# Every test gets the same surroundings: where bundles lie, and sanitizers that stop at a finding.
function(accrt_test_environment name label)
  set_tests_properties(${name} PROPERTIES
    LABELS "${label}" TIMEOUT 300 SKIP_RETURN_CODE 77
    ENVIRONMENT "CMAKE_GENERATOR=${CMAKE_GENERATOR};ACCRT_TEST_BUNDLES=${ACCRT_TEST_BUNDLES};ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:strict_string_checks=1:detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1;TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
endfunction()

# accrt_skipped_test(name label why): a test that cannot be had here, so that CTest lists it as skipped. `./dev test` prints these
# lines again at its end.
file(WRITE "${CMAKE_BINARY_DIR}/tests/skipped.txt" "")
function(accrt_skipped_test name label why)
  message(STATUS "Skipped: ${name}: ${why}")
  file(APPEND "${CMAKE_BINARY_DIR}/tests/skipped.txt" "${name}: ${why}\n")
  add_test(NAME ${name} COMMAND sh -c "echo \"skipped: $0\"; exit 77" "${why}")
  accrt_test_environment(${name} "${label}")
endfunction()

# accrt_add_test(source library [include folders...]): one executable, one CTest entry.
function(accrt_add_test source library)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${source}")
  get_filename_component(label "${path}" DIRECTORY)
  string(REGEX REPLACE "(_test)?\\.c$" "" name "${path}")
  string(REPLACE "/" "." name "${name}")
  add_executable(${name} "${source}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE ${ARGN})
  target_compile_definitions(${name} PRIVATE ACCRT_TEST_BUNDLES="${ACCRT_TEST_BUNDLES}"
                             ACCRT_BUILD_VERSION="${PROJECT_VERSION}"
                             ACCRT_TEST_DATA="${ACCRT_TEST_DATA}")
  if(TARGET accrt_test_bundles)
    add_dependencies(${name} accrt_test_bundles)
  endif()
  target_link_libraries(${name} PRIVATE ${library} accrt_flags PkgConfig::CMOCKA ${CMAKE_DL_LIBS})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  accrt_test_environment(${name} "${label}")
endfunction()

file(GLOB_RECURSE ACCRT_INSIDE_TESTS CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/runtime/*_test.c" "${PROJECT_SOURCE_DIR}/loader/*_test.c"
     "${PROJECT_SOURCE_DIR}/abi/*_test.c" "${PROJECT_SOURCE_DIR}/tests/fault/*.c")
foreach(source IN LISTS ACCRT_INSIDE_TESTS)
  get_filename_component(folder "${source}" DIRECTORY)
  if(folder MATCHES "runtime/drivers/cuda$")
    # Not the folder itself: its cuda.h is not the toolkit's.
    if(ACCRT_CUDA_BUILT)
      accrt_add_test("${source}" accrt_static "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include"
                     "${ACCRT_CUDA_INCLUDE_DIR}")
      get_filename_component(name "${source}" NAME)
      string(REGEX REPLACE "_test\\.c$" "" name "${name}")
      list(APPEND ACCRT_CUDA_TESTS "runtime.drivers.cuda.${name}")
    endif()
    continue()
  endif()
  if(folder MATCHES "loader/text$" AND NOT TARGET accrt_text)
    continue()
  endif()
  accrt_add_test("${source}" accrt_static "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include"
                 "${folder}")
endforeach()
if(TARGET loader.text.text)
  # The test's own malloc and its like, which fail when they are told to.
  target_link_libraries(loader.text.text PRIVATE accrt_text accrt_static)
  target_link_options(loader.text.text PRIVATE
                      "LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=open_memstream")
endif()

file(GLOB ACCRT_OUTSIDE_TESTS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/unit/*.c")
foreach(source IN LISTS ACCRT_OUTSIDE_TESTS)
  accrt_add_test("${source}" accrt "${PROJECT_SOURCE_DIR}/tests/unit")
endforeach()

# Parts of the tool that stand on the library alone: foo_test.c with the foo.c beside it.
file(GLOB ACCRT_TOOL_TESTS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/accx/*_test.c")
foreach(source IN LISTS ACCRT_TOOL_TESTS)
  accrt_add_test("${source}" accrt "${PROJECT_SOURCE_DIR}/tools/accx")
  get_filename_component(name "${source}" NAME)
  string(REGEX REPLACE "_test\\.c$" "" name "${name}")
  target_sources(tools.accx.${name} PRIVATE "${PROJECT_SOURCE_DIR}/tools/accx/${name}.c")
endforeach()

# Programs that tests run and compare with (build/tests/abi.layout prints C's struct layouts).
file(GLOB ACCRT_ABI_PROGRAMS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/abi/*.c")
foreach(source IN LISTS ACCRT_ABI_PROGRAMS)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(abi.${name} "${source}")
  set_target_properties(abi.${name} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(abi.${name} PRIVATE "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(abi.${name} PRIVATE accrt_flags)
endforeach()

# Tests of the CUDA driver run under a stand-in for libcuda.so.1, on machines with and without a GPU.
if(ACCRT_CUDA_BUILT AND NOT ACCRT_CUDA_VERSION LESS 13000)
  add_subdirectory(tests/fakecuda)
  foreach(test IN LISTS ACCRT_CUDA_TESTS)
    accrt_fakecuda(${test})
  endforeach()
else()
  if(ACCRT_CUDA_BUILT)
    set(why "the stand-in for CUDA's driver needs the headers of CUDA 13.0, these are ${ACCRT_CUDA_VERSION}")
  elseif(ACCRT_CUDA_WHY)
    set(why "the CUDA driver is not built: ${ACCRT_CUDA_WHY}")
  else()
    set(why "the CUDA driver is not built: ACCRT_CUDA=${ACCRT_CUDA}")
  endif()
  accrt_skipped_test(tests.fakecuda "tests/fakecuda" "${why}")
  accrt_skipped_test(cts.cuda "tests/cts" "${why}")
  if(NOT ACCRT_CUDA_BUILT)
    accrt_skipped_test(runtime.drivers.cuda "runtime/drivers/cuda" "${why}")
  endif()
endif()
include(cmake/AccrtFuzz.cmake)
add_subdirectory(tests/packs)
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/cts/CMakeLists.txt")
  add_subdirectory(tests/cts)
endif()

# The installed tree, as its users see it. Sanitized libraries are not installed by anybody.
if(NOT ACCRT_SANITIZE)
  add_test(NAME tests.install.consumers COMMAND sh
           "${PROJECT_SOURCE_DIR}/tests/install/consumers.sh" "${CMAKE_BINARY_DIR}")
  accrt_test_environment(tests.install.consumers "tests/install")
  add_test(NAME tests.abi.symbols COMMAND sh "${PROJECT_SOURCE_DIR}/tests/abi/symbols.sh"
           "$<TARGET_FILE:accrt>")
  accrt_test_environment(tests.abi.symbols "tests/abi")
endif()
