# The CUDA backend's files, for the plugin and for the simulation in tests/simt.
set(dp_cuda_folder ${PROJECT_SOURCE_DIR}/kernels/cuda)
set(dp_cuda_kernels)
foreach(name
    avg_pool
    batch_norm
    batch_norm_moments
    batch_norm_stats
    batch_norm_sums
    conv_bias
    conv_data
    conv_forward
    conv_geometry
    conv_thin
    conv_weights
    dropout
    elementwise
    gather
    linear
    loss
    max_pool
    peer_pattern
    reorder
    tree_sum
    update
    upload
)
  list(APPEND dp_cuda_kernels ${dp_cuda_folder}/${name}.cu)
endforeach()
set(dp_cuda_runtime)
foreach(name
    check
    context
    cuda_backend
    describe_devices
    gemm_choice
    owner
    p2p_communicator
    peer_probe
    peers
    staging
    stream
    tensor_layout
)
  list(APPEND dp_cuda_runtime ${dp_cuda_folder}/${name}.cpp)
endforeach()
# What a library that shares no symbols with the program needs of the rest.
set(dp_cuda_shared
  ${PROJECT_SOURCE_DIR}/engine/floor/device.cpp
  ${PROJECT_SOURCE_DIR}/engine/floor/shape.cpp
  ${PROJECT_SOURCE_DIR}/kernels/check_shapes.cpp
  ${PROJECT_SOURCE_DIR}/kernels/host/collective_call.cpp
  ${PROJECT_SOURCE_DIR}/kernels/host/meeting_board.cpp
  ${PROJECT_SOURCE_DIR}/kernels/op_names.cpp
  ${PROJECT_SOURCE_DIR}/kernels/slice.cpp
)
