// Import and export of the master's running statistics, as host tensors of the compute type. Batch counters are int64.
#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using NamedTensor = std::pair<std::string, Tensor>;

namespace {

bool is_counter(const BufferSpec& buffer) { return buffer.kind == BufferKind::num_batches_tracked; }

// Offset in the buffer arena, in elements.
std::int64_t place_of(const engine::NormTable& norms, const BufferSpec& buffer) {
  for (int i = 0; i < norms.count(); ++i) {
    const engine::Norm& norm = norms.norm(i);
    if (buffer.layer == norm.layer) return buffer.kind == BufferKind::running_mean ? norm.mean : norm.variance;
  }
  throw Error(ErrorCode::usage, "no layer of the model has '" + buffer.name + "'");
}

template <typename From, typename To>
void convert(const Tensor& from, Tensor& to) {
  const auto source = from.span<From>();
  const auto target = to.span<To>();
  for (std::size_t i = 0; i < source.size(); ++i) target[i] = static_cast<To>(source[i]);
}

}  // namespace

const BufferSpec* DataParallel::State::find_buffer(const std::string& name) const {
  for (const BufferSpec& buffer : model.buffers())
    if (buffer.name == name) return &buffer;
  return nullptr;
}

void DataParallel::State::require_fit(const BufferSpec& buffer, const Tensor& tensor) const {
  const bool real = tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64;
  if (tensor.shape() == buffer.shape && (is_counter(buffer) ? tensor.dtype() == DType::i64 : real)) return;
  throw Error(ErrorCode::data, "'" + buffer.name + "' of model '" + model.name() + "' is " + to_string(buffer.type) +
                                   " of shape " + to_string(buffer.shape) + ", not " + to_string(tensor.dtype()) +
                                   " of shape " + to_string(tensor.shape()));
}

void DataParallel::State::import_buffer(engine::Replica& master, const BufferSpec& buffer, const Tensor& tensor) {
  if (is_counter(buffer)) {
    batches_tracked = *tensor.data<std::int64_t>();
    return;
  }
  Tensor same(buffer.shape, table->type());
  if (tensor.dtype() == DType::f32)
    table->type() == DType::f32 ? convert<float, float>(tensor, same) : convert<float, double>(tensor, same);
  else
    table->type() == DType::f32 ? convert<double, float>(tensor, same) : convert<double, double>(tensor, same);
  const std::size_t offset = static_cast<std::size_t>(place_of(norms, buffer)) * size_of(table->type());
  master.compute().copy(master.buffers() + offset, same.raw(), same.bytes());
  master.compute().synchronize();
}

std::vector<NamedTensor> DataParallel::State::export_buffers() {
  std::vector<NamedTensor> tensors;
  on_first([&](engine::Replica& master, engine::GradientSync&) {
    for (const BufferSpec& buffer : model.buffers()) {
      Tensor tensor(buffer.shape, is_counter(buffer) ? DType::i64 : table->type());
      if (is_counter(buffer)) {
        *tensor.data<std::int64_t>() = batches_tracked;
      } else {
        const std::size_t offset = static_cast<std::size_t>(place_of(norms, buffer)) * size_of(table->type());
        master.compute().download(tensor.raw(), master.buffers() + offset, tensor.bytes());
      }
      tensors.emplace_back(buffer.name, std::move(tensor));
    }
  });
  return tensors;
}

}  // namespace dp
