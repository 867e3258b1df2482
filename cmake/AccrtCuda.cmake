# Whether the CUDA driver is built: it needs the headers of the CUDA toolkit (12.4 or later) and
# nothing else. libcuda.so.1 is opened at run time, so that the library serves machines without a
# GPU too.
set(ACCRT_CUDA "AUTO" CACHE STRING "Build the CUDA driver: AUTO (when its headers are found), ON or OFF")
set_property(CACHE ACCRT_CUDA PROPERTY STRINGS AUTO ON OFF)

set(ACCRT_CUDA_BUILT OFF)
if(ACCRT_CUDA MATCHES "^(AUTO|ON|TRUE|1|YES)$")
  # Beside nvcc, in CUDA_HOME or CUDA_PATH, or where the toolkit goes by default.
  find_program(ACCRT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(ACCRT_NVCC)
  set(ACCRT_CUDA_HINTS)
  if(ACCRT_NVCC)
    get_filename_component(ACCRT_CUDA_HINTS "${ACCRT_NVCC}" REALPATH)
    get_filename_component(ACCRT_CUDA_HINTS "${ACCRT_CUDA_HINTS}" DIRECTORY)
    get_filename_component(ACCRT_CUDA_HINTS "${ACCRT_CUDA_HINTS}" DIRECTORY)
  endif()
  find_path(ACCRT_CUDA_INCLUDE_DIR NAMES cudaTypedefs.h
            HINTS ENV CUDA_HOME ENV CUDA_PATH ${ACCRT_CUDA_HINTS}
            PATHS /usr/local/cuda
            PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include)
  mark_as_advanced(ACCRT_CUDA_INCLUDE_DIR)
  if(ACCRT_CUDA_INCLUDE_DIR AND EXISTS "${ACCRT_CUDA_INCLUDE_DIR}/cuda.h")
    file(STRINGS "${ACCRT_CUDA_INCLUDE_DIR}/cuda.h" ACCRT_CUDA_VERSION REGEX "^#define CUDA_VERSION ")
    string(REGEX REPLACE "[^0-9]" "" ACCRT_CUDA_VERSION "${ACCRT_CUDA_VERSION}")
    if(ACCRT_CUDA_VERSION AND NOT ACCRT_CUDA_VERSION LESS 12040)
      set(ACCRT_CUDA_BUILT ON)
      message(STATUS "CUDA driver: built with the headers in ${ACCRT_CUDA_INCLUDE_DIR} (${ACCRT_CUDA_VERSION})")
    else()
      set(ACCRT_CUDA_WHY "the headers in ${ACCRT_CUDA_INCLUDE_DIR} are of version ${ACCRT_CUDA_VERSION}, "
                         "12040 or later is needed")
    endif()
  else()
    set(ACCRT_CUDA_WHY "cuda.h and cudaTypedefs.h were not found: set CUDA_HOME or ACCRT_CUDA_INCLUDE_DIR")
  endif()
  if(NOT ACCRT_CUDA_BUILT)
    string(REPLACE ";" "" ACCRT_CUDA_WHY "${ACCRT_CUDA_WHY}")
    if(ACCRT_CUDA STREQUAL "AUTO")
      message(STATUS "CUDA driver: not built (${ACCRT_CUDA_WHY})")
    else()
      message(FATAL_ERROR "CUDA driver: ACCRT_CUDA=${ACCRT_CUDA}, but ${ACCRT_CUDA_WHY}")
    endif()
  endif()
elseif(ACCRT_CUDA MATCHES "^(OFF|FALSE|0|NO)$")
  message(STATUS "CUDA driver: not built (ACCRT_CUDA=OFF)")
else()
  message(FATAL_ERROR "ACCRT_CUDA is '${ACCRT_CUDA}'; known: AUTO, ON, OFF")
endif()
