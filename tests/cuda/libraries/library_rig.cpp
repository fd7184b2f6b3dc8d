#include "cuda/libraries/library_rig.h"

#include <cstring>

#include "kernels/low_float.h"

namespace dp::test {
namespace {

using namespace kernels;

template <typename T>
void write(std::byte* to, double value) {
  const T element = from_float<T>(static_cast<float>(value));
  std::memcpy(to, &element, sizeof element);
}
template <typename T>
double read(const std::byte* from) {
  T element;
  std::memcpy(&element, from, sizeof element);
  return static_cast<double>(to_float(element));
}

void write_as(DType type, std::byte* to, double value) {
  if (type == DType::bf16) return write<BFloat16>(to, value);
  if (type == DType::f16) return write<Float16>(to, value);
  write<float>(to, value);
}
double read_as(DType type, const std::byte* from) {
  if (type == DType::bf16) return read<BFloat16>(from);
  if (type == DType::f16) return read<Float16>(from);
  return read<float>(from);
}

// Calls use(row-major index, memory offset) for each element.
template <typename Use>
void for_places(const TensorDesc& desc, const Use& use) {
  const cuda::Order order = cuda::order_of(desc);
  std::size_t place = 0;
  for (std::int64_t o = 0; o < order.outer; ++o)
    for (std::int64_t c = 0; c < order.channels; ++c)
      for (std::int64_t p = 0; p < order.pixels; ++p)
        use(place++, static_cast<std::size_t>(order.channels_last ? (o * order.pixels + p) * order.channels + c
                                                                  : (o * order.channels + c) * order.pixels + p));
}

}  // namespace

HostTensor rounded(const HostTensor& tensor, DType type) {
  HostTensor result = tensor;
  std::byte element[4];
  for (double& value : result.values) write_as(type, element, value), value = read_as(type, element);
  return result;
}

double tolerance(DType result) { return result == DType::f32 ? 1e-6 : result == DType::bf16 ? 4e-3 : 5e-4; }

std::vector<std::string> candidate_names(const std::vector<cuda::Candidate>& candidates) {
  std::vector<std::string> names;
  for (const cuda::Candidate& candidate : candidates) names.push_back(candidate.name);
  return names;
}

DeviceTensor LibraryRig::upload(const HostTensor& tensor, const TensorDesc& desc) {
  std::vector<std::byte> bytes(desc.layout.bytes);
  for_places(desc, [&](std::size_t plain, std::size_t place) {
    write_as(desc.type, bytes.data() + place * size_of(desc.type), tensor.values[plain]);
  });
  return {desc, rig_.upload_bytes(bytes.data(), bytes.size())};
}

HostTensor LibraryRig::download(const DeviceTensor& tensor) {
  std::vector<std::byte> bytes(tensor.desc.layout.bytes);
  rig_.download_bytes(bytes.data(), *tensor.memory, bytes.size());
  HostTensor result = zeros(tensor.desc.shape);
  for_places(tensor.desc, [&](std::size_t plain, std::size_t place) {
    result.values[plain] = read_as(tensor.desc.type, bytes.data() + place * size_of(tensor.desc.type));
  });
  return result;
}

}  // namespace dp::test
