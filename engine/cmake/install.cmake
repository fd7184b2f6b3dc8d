# `cmake --install`: the library, its public headers, the programs, and the package files for find_package(dp) and
# pkg-config. Each component is a Debian package (packages.cmake).
include(CMakePackageConfigHelpers)
set(dp_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dp)

install(TARGETS dp EXPORT dpTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib NAMELINK_COMPONENT dev
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine/include/dp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT dpTargets NAMESPACE dp:: DESTINATION ${dp_package_dir} COMPONENT dev)
if(TARGET dp_train)
  install(TARGETS dp_train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(TARGETS dp_train_main EXPORT dpTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib NAMELINK_COMPONENT dev
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
endif()
# Programs search for the plugin in ../lib/dp. Embedders search the run path of the binary that contains dp.
if(TARGET dp_cuda)
  install(TARGETS dp_cuda dp_peer_probe LIBRARY DESTINATION lib/dp COMPONENT cuda RUNTIME DESTINATION lib/dp COMPONENT cuda)
endif()
foreach(program dp_fetch dp_stacks)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION lib/dp COMPONENT tools)
  endif()
endforeach()
if(TARGET dp_bench)
  install(TARGETS dp_bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(TARGETS bench_step bench_ops bench_comm RUNTIME DESTINATION lib/dp COMPONENT tools)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/benchmarks/programs/pytorch_step.py ${PROJECT_SOURCE_DIR}/benchmarks/programs/pytorch_ops.py
          DESTINATION lib/dp COMPONENT tools)
endif()
if(TARGET dp_mpi)
  install(TARGETS dp_mpi LIBRARY DESTINATION lib/dp COMPONENT mpi)
endif()
if(TARGET dp_onnx)
  install(TARGETS dp_onnx LIBRARY DESTINATION lib/dp COMPONENT onnx)
endif()

# Programs are built with the run path that they have when installed: folders of libraries outside the system's.
# Otherwise CMake reserves room for another one by an empty element, which the loader takes as the working folder.
foreach(program dp_train dp_cuda dp_peer_probe dp_fetch dp_stacks dp_bench bench_step bench_ops bench_comm dp_mpi dp_onnx)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/dpConfig.cmake.in ${PROJECT_BINARY_DIR}/dpConfig.cmake
                              INSTALL_DESTINATION ${dp_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dpConfig.cmake ${PROJECT_BINARY_DIR}/dpConfigVersion.cmake DESTINATION ${dp_package_dir}
        COMPONENT dev)
if(NOT dp_hides_internals)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindTurboJPEG.cmake ${CMAKE_CURRENT_LIST_DIR}/FindWebP.cmake
          DESTINATION ${dp_package_dir} COMPONENT dev)
endif()

# A program that links a static dp also links its dependencies, and holds the run path.
set(dp_pc_folder ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${dp_pc_folder} OUTPUT_VARIABLE dp_pc_prefix)
set(dp_pc_requires "")
set(dp_pc_libs "")
if(NOT dp_hides_internals)
  set(dp_pc_requires "fmt zlib libcrypto libpng libturbojpeg libwebp")
  set(dp_pc_libs " -ldnnl -fopenmp -pthread -Wl,-rpath,\${prefix}/lib/dp")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/dp.pc.in ${PROJECT_BINARY_DIR}/dp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
