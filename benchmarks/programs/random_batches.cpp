#include "benchmarks/programs/random_batches.h"

#include <fstream>

#include "dp/error.h"
#include "dp/random.h"

namespace dp::benchmarks {

std::vector<Batch> random_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows) {
  Random random(seed, RandomUse::synthetic);
  const auto classes = static_cast<std::uint32_t>(model.output().numel());
  const std::int64_t pixels = model.input().numel();
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    Batch one{Tensor(model.input().prepended(rows.size())), Tensor({rows.size()}, DType::i32),
              Tensor({rows.size()}, DType::i64), batch};
    for (std::int64_t row = 0; row < batch; ++row) {
      const bool mine = row >= rows.begin && row < rows.end;
      float* const image = mine ? one.images.data<float>() + (row - rows.begin) * pixels : nullptr;
      for (std::int64_t p = 0; p < pixels; ++p) {
        const float pixel = random.normal();
        if (mine) image[p] = pixel;
      }
      const auto label = static_cast<std::int32_t>(random.below(classes));
      if (!mine) continue;
      one.labels.data<std::int32_t>()[row - rows.begin] = label;
      one.samples.data<std::int64_t>()[row - rows.begin] = i * batch + row;
    }
    batches.push_back(std::move(one));
  }
  return batches;
}

std::vector<Batch> resident_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows) {
  Random random(seed, RandomUse::synthetic);
  const auto classes = static_cast<std::uint32_t>(model.output().numel());
  const auto channels = static_cast<std::size_t>(model.input()[0]);
  ImageSet set{Tensor(model.input().prepended(batch * count), DType::u8),
               {std::vector<float>(channels, 0.5f), std::vector<float>(channels, 0.29f)},  // about mean 0, deviation 1
               {.padding = 4, .flip = Flip::random}};
  for (std::uint8_t& byte : set.images.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(random.below(256));
  const auto shared = std::make_shared<const ImageSet>(std::move(set));
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    Batch one{Tensor(),
              Tensor({rows.size()}, DType::i32),
              Tensor({rows.size()}, DType::i64),
              batch,
              {shared, /*augment=*/true, seed, 0}};
    for (std::int64_t row = 0; row < batch; ++row) {
      const auto label = static_cast<std::int32_t>(random.below(classes));
      if (row < rows.begin || row >= rows.end) continue;
      one.labels.data<std::int32_t>()[row - rows.begin] = label;
      one.samples.data<std::int64_t>()[row - rows.begin] = i * batch + row;
    }
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
  if (batches.front().resident.set)
    write(batches.front().resident.set->images);
  else
    for (const Batch& batch : batches) write(batch.images);
  for (const Batch& batch : batches) write(batch.labels);
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write the inputs to " + path.string() + "; is there room?");
}

}  // namespace dp::benchmarks
