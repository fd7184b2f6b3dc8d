#include "benchmarks/random_batches.h"

#include <fstream>
#include <numeric>

#include "dp/error.h"
#include "dp/random.h"

namespace dp::benchmarks {

std::vector<Batch> random_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed) {
  Random random(seed, RandomUse::synthetic);
  const auto classes = static_cast<std::uint32_t>(model.output().numel());
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    Batch one{Tensor(model.input().prepended(batch)), Tensor({batch}, DType::i32), Tensor({batch}, DType::i64)};
    for (float& pixel : one.images.span<float>()) pixel = random.normal();
    for (std::int32_t& label : one.labels.span<std::int32_t>())
      label = static_cast<std::int32_t>(random.below(classes));
    const auto samples = one.samples.span<std::int64_t>();
    std::iota(samples.begin(), samples.end(), i * batch);
    batches.push_back(std::move(one));
  }
  return batches;
}

void save_inputs(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& weights,
                 const std::vector<Batch>& batches) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](const Tensor& tensor) {
    file.write(static_cast<const char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  };
  for (const auto& [name, tensor] : weights) write(tensor);
  for (const Batch& batch : batches) write(batch.images);
  for (const Batch& batch : batches) write(batch.labels);
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write the inputs to " + path.string() + "; is there room?");
}

}  // namespace dp::benchmarks
