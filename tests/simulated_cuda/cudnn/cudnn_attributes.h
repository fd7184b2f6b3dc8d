// Which attributes each kind of cuDNN's descriptors has, as its pages say: of which type, how many elements, and whether it must be set.
#pragma once

#include <string>

#include "simulated_cuda/cudnn/cudnn_state.h"

namespace dp::simt {

std::size_t bytes_of(CudnnAttributeType type);
std::string refused_attribute(CudnnKind kind, CudnnAttribute name, CudnnAttributeType type,
                              std::int64_t count);         // empty: fine
std::string missing_attribute(const CudnnObject& object);  // empty: none
bool may_be(CudnnAttribute name, CudnnKind kind);          // whether the attribute is a descriptor of that kind

}  // namespace dp::simt
