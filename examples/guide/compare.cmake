# Runs PROGRAM and compares what it prints with the file EXPECTED.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE got ERROR_VARIABLE errors RESULT_VARIABLE status)
file(READ "${EXPECTED}" expected)
if(NOT status EQUAL 0 OR NOT got STREQUAL expected)
  message(FATAL_ERROR "status ${status}\n${errors}\nprinted:\n${got}\nexpected:\n${expected}")
endif()
