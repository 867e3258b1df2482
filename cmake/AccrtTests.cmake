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
# The longest take a minute under the thread sanitizer, five on a busy machine.
set(ACCRT_TEST_TIMEOUT_S 300)
if(ACCRT_SANITIZE)
  set(ACCRT_TEST_TIMEOUT_S 1200)
endif()
function(accrt_test_environment name label)
  set_tests_properties(${name} PROPERTIES
    LABELS "${label}" TIMEOUT ${ACCRT_TEST_TIMEOUT_S} SKIP_RETURN_CODE 77
    ENVIRONMENT "CMAKE_GENERATOR=${CMAKE_GENERATOR};ACCRT_TEST_BUNDLES=${ACCRT_TEST_BUNDLES};ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:strict_string_checks=1:detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1;TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1")
endfunction()

# accrt_skipped_test(name label why): a test that cannot be had here, so that CTest lists it as
# skipped. `./dev test` prints these lines again at its end.
file(WRITE "${CMAKE_BINARY_DIR}/tests/skipped.txt" "")
function(accrt_skipped_test name label why)
  message(STATUS "Skipped: ${name}: ${why}")
  file(APPEND "${CMAKE_BINARY_DIR}/tests/skipped.txt" "${name}: ${why}\n")
  add_test(NAME ${name} COMMAND sh -c "echo \"skipped: $0\"; exit 77" "${why}")
  accrt_test_environment(${name} "${label}")
endfunction()

# accrt_test_program(name source library): a program that tests run with arguments of their own. It
# may look inside the library.
function(accrt_test_program name source library)
  add_executable(${name} "${source}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  target_compile_definitions(${name} PRIVATE ACCRT_TEST_DATA="${ACCRT_TEST_DATA}")
  target_link_libraries(${name} PRIVATE ${library} accrt_flags)
  if(TARGET accrt_test_bundles)
    add_dependencies(${name} accrt_test_bundles)
  endif()
endfunction()

# Tests that start no second thread and no other program: the thread sanitizer has nothing to find
# in them, so its build leaves them out. tests/one_thread.c makes them fail in all other builds when
# they begin to.
file(STRINGS tests/one_thread.txt ACCRT_ONE_THREAD REGEX "^[^#]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS tests/one_thread.txt)
foreach(path IN LISTS ACCRT_ONE_THREAD)
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/${path}")
    message(FATAL_ERROR "tests/one_thread.txt: there is no ${path}")
  endif()
endforeach()

# accrt_ctest(target source label [arguments...]): the CTest entry of a target, by the same name.
function(accrt_ctest target source label)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${source}")
  if(path IN_LIST ACCRT_ONE_THREAD)
    if(ACCRT_SANITIZE STREQUAL "thread")
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
      return()
    endif()
    target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests/one_thread.c")
  endif()
  add_test(NAME ${target} COMMAND ${target} ${ARGN} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  accrt_test_environment(${target} "${label}")
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
  accrt_ctest(${name} "${source}" "${label}")
endfunction()

file(GLOB_RECURSE ACCRT_INSIDE_TESTS CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/runtime/*_test.c" "${PROJECT_SOURCE_DIR}/loader/*_test.c"
     "${PROJECT_SOURCE_DIR}/format/*_test.c" "${PROJECT_SOURCE_DIR}/write/*_test.c"
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
      if(TEST runtime.drivers.cuda.${name})
        list(APPEND ACCRT_CUDA_TESTS "runtime.drivers.cuda.${name}")
      endif()
    endif()
    continue()
  endif()
  if(folder MATCHES "write/text$" AND NOT TARGET accrt_text)
    continue()
  endif()
  accrt_add_test("${source}" accrt_write_static "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include"
                 "${folder}")
endforeach()
if(TARGET write.text.text)
  # The test's own malloc and its like, which fail when they are told to.
  target_link_libraries(write.text.text PRIVATE accrt_text accrt_write_static)
  target_link_options(write.text.text PRIVATE
                      "LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=open_memstream")
endif()

file(GLOB ACCRT_SERVE_TESTS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/serve/*_test.c")
foreach(source IN LISTS ACCRT_SERVE_TESTS)
  accrt_add_test("${source}" accrt_serve_static "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
endforeach()

# A stand-in for llguidance, which serve/grammars_test.c, tests/serve/handles_test.c and serve_fuzz
# open.
add_library(stand_in_llguidance MODULE tests/serve/stand_in_llguidance.c)
set_target_properties(stand_in_llguidance PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
target_link_libraries(stand_in_llguidance PRIVATE accrt_flags)
add_dependencies(serve.grammars stand_in_llguidance)
target_compile_definitions(serve.grammars PRIVATE ACCRT_TEST_GRAMMARS="$<TARGET_FILE:stand_in_llguidance>")

# What tests/python/serve_reference.py drives.
accrt_test_program(serve.scheduler_drive tests/serve/scheduler_drive.c accrt_serve_static)
# Random operations with what must hold after each: a part here, 10^8 in `./dev soak serve`.
accrt_test_program(serve.scheduler_soak tests/serve/scheduler_soak.c accrt_serve_static)
add_test(NAME tests.serve.scheduler_soak COMMAND serve.scheduler_soak --operations 1000000)
accrt_test_environment(tests.serve.scheduler_soak "tests/serve")

file(GLOB ACCRT_OUTSIDE_TESTS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/unit/*.c")
foreach(source IN LISTS ACCRT_OUTSIDE_TESTS)
  accrt_add_test("${source}" accrt_write "${PROJECT_SOURCE_DIR}/tests/unit")
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

# Tests of the CUDA driver run under a stand-in for libcuda.so.1, on machines with and without a
# GPU.
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

# Random calls of every function: a short seeded part here, 10^7 in `./dev soak api`.
accrt_test_program(api_fuzz tests/api_fuzz/api_fuzz.c accrt_write_static)
# Its arguments are random: what is in flight and what is given as an output share memory, and so
# would be races of its own.
if(NOT ACCRT_SANITIZE STREQUAL "thread")
  add_test(NAME tests.api_fuzz.seed1 COMMAND api_fuzz --calls 40000 --seed 1)
  add_test(NAME tests.api_fuzz.threads COMMAND api_fuzz --calls 40000 --seed 2 --threads 3)
  accrt_test_environment(tests.api_fuzz.seed1 "tests/api_fuzz")
  accrt_test_environment(tests.api_fuzz.threads "tests/api_fuzz")
endif()
# The same for libaccrt_serve and libaccrt_http.
if(TARGET accrt_http_static)
  accrt_test_program(serve_fuzz tests/api_fuzz/serve_fuzz.c accrt_http_static)
  add_dependencies(serve_fuzz stand_in_llguidance)
  target_compile_definitions(serve_fuzz PRIVATE ACCRT_TEST_GRAMMARS="$<TARGET_FILE:stand_in_llguidance>")
  foreach(threads 1 3)
    add_test(NAME tests.serve_fuzz.threads${threads} COMMAND serve_fuzz --calls 20000 --seed ${threads} --threads ${threads})
    accrt_test_environment(tests.serve_fuzz.threads${threads} "tests/api_fuzz")
  endforeach()
endif()
add_subdirectory(tests/packs)
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/cts/CMakeLists.txt")
  add_subdirectory(tests/cts)
endif()

file(GLOB ACCRT_HTTP_TESTS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/serve/http/*_test.c")
foreach(source IN LISTS ACCRT_HTTP_TESTS)
  if(TARGET accrt_http_static)
    accrt_add_test("${source}" accrt_http_static "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include"
                   "${ACCRT_LLHTTP_INCLUDE}")
  endif()
endforeach()
# Handles are validated by both libraries: linked statically they have one register, shared ones
# two.
if(TARGET accrt_http_static)
  foreach(kind static shared)
    string(REPLACE "_shared" "" library accrt_http_${kind})
    accrt_test_program(serve.handles_${kind} tests/serve/handles_test.c ${library})
    target_compile_definitions(serve.handles_${kind} PRIVATE ACCRT_TEST_SHARED=$<STREQUAL:${kind},shared>
                               ACCRT_TEST_GRAMMARS="$<TARGET_FILE:stand_in_llguidance>")
    target_link_libraries(serve.handles_${kind} PRIVATE PkgConfig::CMOCKA Threads::Threads)
    add_dependencies(serve.handles_${kind} stand_in_llguidance)
    add_test(NAME tests.serve.handles_${kind} COMMAND serve.handles_${kind})
    accrt_test_environment(tests.serve.handles_${kind} "tests/serve")
    accrt_test_program(serve.asked_${kind} tests/serve/asked_test.c ${library})
    target_link_libraries(serve.asked_${kind} PRIVATE PkgConfig::CMOCKA Threads::Threads)
    add_test(NAME tests.serve.asked_${kind} COMMAND serve.asked_${kind})
    accrt_test_environment(tests.serve.asked_${kind} "tests/serve")
    accrt_test_program(serve.fork_${kind} tests/serve/fork_test.c ${library})
    target_link_libraries(serve.fork_${kind} PRIVATE PkgConfig::CMOCKA Threads::Threads)
    add_test(NAME tests.serve.fork_${kind} COMMAND serve.fork_${kind})
    accrt_test_environment(tests.serve.fork_${kind} "tests/serve")
  endforeach()
endif()
if(NOT TARGET accrt_http_static)
  accrt_skipped_test(serve.http "serve/http" "libaccrt_http is not built: it needs llhttp")
endif()

add_test(NAME tests.abi.messages COMMAND sh "${PROJECT_SOURCE_DIR}/tests/abi/messages.sh")
accrt_test_environment(tests.abi.messages "tests/abi")

# The installed tree, as its users see it. Sanitized libraries are never installed.
if(NOT ACCRT_SANITIZE)
  add_test(NAME tests.install.consumers COMMAND sh
           "${PROJECT_SOURCE_DIR}/tests/install/consumers.sh" "${CMAKE_BINARY_DIR}")
  accrt_test_environment(tests.install.consumers "tests/install")
  add_test(NAME tests.abi.symbols COMMAND sh "${PROJECT_SOURCE_DIR}/tests/abi/symbols.sh"
           "$<TARGET_FILE:accrt>" "$<TARGET_FILE:accrt_write>" "$<TARGET_FILE:accrt_serve>" "${CMAKE_BINARY_DIR}/lib/libaccrt_http.so")
  accrt_test_environment(tests.abi.symbols "tests/abi")
endif()

# The library once more, with a call at each basic block: tests/python/test_bounded.py counts with
# it what work on files costs, and builds it when it runs.
if(NOT ACCRT_SANITIZE)
  add_library(accrt_counted OBJECT EXCLUDE_FROM_ALL ${ACCRT_SOURCES} "${ACCRT_ERROR_FILES}")
  foreach(property INCLUDE_DIRECTORIES COMPILE_DEFINITIONS)
    set_property(TARGET accrt_counted PROPERTY ${property}
                 "$<TARGET_PROPERTY:accrt_objects,${property}>")
  endforeach()
  # As what ships is compiled, whatever else is built here: its blocks are compared with limits.
  target_compile_options(accrt_counted PRIVATE -O2 -fsanitize-coverage=trace-pc -g0)
  target_link_libraries(accrt_counted PRIVATE accrt_flags Threads::Threads)
  add_executable(bounded.count EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/bounded/count.c"
                 $<TARGET_OBJECTS:accrt_counted>)
  set_target_properties(bounded.count PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(bounded.count PRIVATE "${PROJECT_SOURCE_DIR}"
                             "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(bounded.count PRIVATE accrt_flags Threads::Threads ${CMAKE_DL_LIBS} m)
endif()
