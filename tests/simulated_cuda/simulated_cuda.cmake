# dp_simulated_cuda(<name> [RACE] SOURCES <.cu files>): an object library of kernels compiled for the simulation. Link
# it to the program: target_link_libraries(test_x PRIVATE <name>). RACE: the kernels report their accesses to the race
# detector. A program must link either only RACE libraries or none. Host code of the CUDA backend (.cpp) needs only
# target_link_libraries(<target> PUBLIC dp_simt).
function(dp_simulated_cuda name)
  cmake_parse_arguments(arg "RACE" "" "SOURCES" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  set_source_files_properties(${arg_SOURCES} PROPERTIES LANGUAGE CXX)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_link_libraries(${name} PRIVATE dp_flags dp_simt_flags dp_simt_device_flags dp::dp)
  # -O1 compiles kernels in half the time of -O3. The emulation takes most of their time, so tests are about as fast.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(arg_RACE)
    target_compile_options(${name} PRIVATE -fsanitize=thread -g1)
    target_link_libraries(${name} PUBLIC dp_simt_race)
  else()
    target_link_libraries(${name} PUBLIC dp_simt)
  endif()
endfunction()
