#include "kernels/op_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/low_float.h"
#include "support/catch.h"

namespace dp::test {
namespace {

using namespace dp::kernels;

constexpr std::size_t kFence = 64;  // bytes
constexpr unsigned char kFenceByte = 0xA5;

template <typename T>
std::vector<double> widened(const std::vector<unsigned char>& bytes) {
  std::vector<double> values;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, bytes.data() + at, sizeof element);
    if constexpr (std::is_same_v<T, double>)
      values.push_back(element);
    else
      values.push_back(static_cast<double>(to_float(element)));
  }
  return values;
}

// `element`: bytes per element. The reference stores every type as float64.
std::vector<double> as_doubles(const std::vector<unsigned char>& bytes, DType type, std::size_t element) {
  if (element == sizeof(double)) return widened<double>(bytes);
  return type == DType::bf16  ? widened<BFloat16>(bytes)
         : type == DType::f16 ? widened<Float16>(bytes)
                              : widened<float>(bytes);
}

std::vector<unsigned char> as_bytes(const HostTensor& tensor, DType type) {
  std::vector<unsigned char> bytes(tensor.values.size() * size_of(type));
  for (std::size_t i = 0; i < tensor.values.size(); ++i)
    if (type == DType::f64)
      reinterpret_cast<double*>(bytes.data())[i] = tensor.values[i];
    else
      reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(tensor.values[i]);
  return bytes;
}

}  // namespace

OpRig::OpRig(DeviceKind kind, int threads, std::optional<DType> activations)
    : kind_(kind), context_(backend(kind).open({kind, 0}, {.threads = threads, .activations = activations})) {
  context_->bind_thread();
  stream_ = context_->make_stream();
}

TensorDesc OpRig::desc(const Shape& shape, const Layout& layout) const {
  return {shape, context_->activation_type(), layout};
}

Layout OpRig::plain(const Shape& shape) const { return context_->plain_layout(shape, context_->activation_type()); }

TensorDesc OpRig::full(const Shape& shape, const Layout& layout) const {
  return {shape, context_->compute_type(), layout};
}

TensorDesc OpRig::plain_full(const Shape& shape) const {
  return full(shape, context_->plain_layout(shape, context_->compute_type()));
}

Layout OpRig::preferred(const Shape& shape) {
  const Conv2dForward conv{.x = desc(shape.with_dim(1, 16)),
                           .w = desc({shape[1], 16, 3, 3}),
                           .y = desc(shape),
                           .window = {.kernel = 3, .stride = 1, .padding = 1}};
  return context_->make_op(conv)->tensors()[2].layout;
}

DeviceTensor OpRig::upload(const HostTensor& tensor, const TensorDesc& desc) {
  REQUIRE(tensor.shape == desc.shape);
  const TensorDesc plain_desc = plain_full(tensor.shape);
  const std::vector<unsigned char> bytes = as_bytes(tensor, plain_desc.type);
  const DeviceTensor dst = relaid({plain_desc, upload_bytes(bytes.data(), bytes.size())}, desc);
  check_padding(dst, tensor);
  return dst;
}

DeviceTensor OpRig::relaid(const DeviceTensor& tensor, const TensorDesc& desc) {
  DeviceTensor dst = poisoned(desc);
  run(*context_->make_op(Reorder{tensor.desc, desc}), {tensor.data(), dst.data()});
  return dst;
}

HostTensor OpRig::download(const DeviceTensor& tensor) {
  const HostTensor values = download_raw(relaid(tensor, plain_full(tensor.desc.shape)));
  check_padding(tensor, values);
  return values;
}

HostTensor OpRig::download_raw(const DeviceTensor& tensor) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(tensor.desc.shape.numel()) * size_of(tensor.desc.type));
  download_bytes(bytes.data(), *tensor.memory, bytes.size());
  check_fence(*tensor.memory, tensor.desc.layout.bytes, "a tensor");
  return {tensor.desc.shape, as_doubles(bytes, tensor.desc.type, size_of(tensor.desc.type))};
}

DeviceTensor OpRig::poisoned(const TensorDesc& desc, unsigned char poison) {
  REQUIRE(!desc.layout.any());
  REQUIRE(desc.layout.bytes >= static_cast<std::size_t>(desc.shape.numel()) * size_of(desc.type));
  return {desc, fenced(desc.layout.bytes, poison)};
}

std::unique_ptr<Buffer> OpRig::upload_bytes(const void* data, std::size_t bytes) {
  auto memory = fenced(bytes, 0);
  copy(memory->data(), data, bytes);
  return memory;
}

void OpRig::download_bytes(void* data, const Buffer& memory, std::size_t bytes) {
  stream_->download(data, const_cast<Buffer&>(memory).data(), bytes);
}

void OpRig::run(Op& op, std::span<void* const> args) {
  const std::size_t bytes = op.workspace_bytes();
  const auto workspace = fenced(bytes, 0xFF);
  op.run(*stream_, args, workspace->data());
  context_->flush();
  stream_->synchronize();
  check_fence(*workspace, bytes, "the workspace");
}

void OpRig::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes) stream_->copy(dst, src, bytes);
  stream_->synchronize();
}

std::unique_ptr<Buffer> OpRig::fenced(std::size_t bytes, unsigned char fill) {
  auto memory = context_->allocate(bytes + kFence);
  std::vector<unsigned char> content(bytes + kFence, kFenceByte);
  std::fill_n(content.begin(), bytes, fill);
  copy(memory->data(), content.data(), content.size());
  return memory;
}

void OpRig::check_fence(const Buffer& memory, std::size_t bytes, const char* what) {
  std::vector<unsigned char> content(bytes + kFence);
  download_bytes(content.data(), memory, content.size());
  INFO("written behind " << what << " on " << to_string(context_->device()));
  CHECK(std::all_of(content.end() - kFence, content.end(), [](unsigned char byte) { return byte == kFenceByte; }));
}

void OpRig::check_padding(const DeviceTensor& tensor, const HostTensor& values) {
  std::vector<unsigned char> bytes(tensor.desc.layout.bytes);
  download_bytes(bytes.data(), *tensor.memory, bytes.size());
  check_fence(*tensor.memory, bytes.size(), "a tensor");
  const auto not_zero = [](double value) { return value != 0; };  // NaN is not zero
  const std::vector<double> all = as_doubles(bytes, tensor.desc.type, context_->element_bytes(tensor.desc.type));
  INFO("the padding of " << tensor.desc.layout.name << " is not zero");
  CHECK(std::count_if(all.begin(), all.end(), not_zero) ==
        std::count_if(values.values.begin(), values.values.end(), not_zero));
}

}  // namespace dp::test
