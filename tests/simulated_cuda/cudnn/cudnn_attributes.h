// The attributes of each kind of cuDNN descriptor, from cuDNN's documentation: type, number of elements, and whether it
// is required.
#pragma once

#include <string>

#include "simulated_cuda/cudnn/cudnn_state.h"

namespace dp::simt {

std::size_t bytes_of(CudnnAttributeType type);
std::string refused_attribute(CudnnKind kind, CudnnAttribute name, CudnnAttributeType type,
                              std::int64_t count);         // empty if the attribute is valid
std::string missing_attribute(const CudnnObject& object);  // empty if none is missing
bool may_be(CudnnAttribute name, CudnnKind kind);          // whether the attribute holds a descriptor of this kind

}  // namespace dp::simt
