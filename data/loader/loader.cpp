#include "dp/loader.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "data/augment/mixing.h"
#include "data/augment/policies.h"
#include "data/loader/batch_filler.h"
#include "data/threads.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {

namespace {

void shuffle(std::span<std::int64_t> values, Random& random) {  // Fisher-Yates
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[random.below(static_cast<std::uint32_t>(left))]);
}

std::int32_t checked_label(const Dataset& dataset, std::int64_t sample) {
  const std::int32_t label = dataset.label(sample);
  if (label < 0 || label >= dataset.classes())
    throw Error(ErrorCode::data, "sample " + std::to_string(sample) + " has label " + std::to_string(label) +
                                     ", but the dataset has " + std::to_string(dataset.classes()) +
                                     " classes; correct the dataset");
  return label;
}

// Each class has as many places as the others, or one more. Its samples take turns, in a new order in each turn.
void fill_balanced(std::span<std::int64_t> order, const Dataset& dataset, Random& random) {
  const auto size = static_cast<std::int64_t>(order.size());
  std::vector<std::vector<std::int64_t>> classes(static_cast<std::size_t>(dataset.classes()));
  for (std::int64_t i = 0; i < size; ++i) classes[static_cast<std::size_t>(checked_label(dataset, i))].push_back(i);
  std::erase_if(classes, [](const auto& samples) { return samples.empty(); });
  std::vector<std::int64_t> turn(classes.size());
  std::iota(turn.begin(), turn.end(), 0);
  shuffle(turn, random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t round = i / turn.size();
    auto& samples = classes[static_cast<std::size_t>(turn[i % turn.size()])];
    if (round % samples.size() == 0) shuffle(samples, random);
    order[i] = samples[round % samples.size()] + size * static_cast<std::int64_t>(round / samples.size());
  }
  shuffle(order, random);
}

}  // namespace

void fill_order(std::span<std::int64_t> order, const LoaderOptions& options, const Dataset* balanced,
                std::int64_t epoch) {
  Random random(options.seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch));
  if (balanced != nullptr) return fill_balanced(order, *balanced, random);
  std::iota(order.begin(), order.end(), 0);
  if (options.shuffle) shuffle(order, random);
  const auto size = static_cast<std::int64_t>(order.size()), repeats = std::int64_t{options.repeats};
  for (std::int64_t i = size - 1; i >= 0 && repeats > 1; --i)
    order[static_cast<std::size_t>(i)] = order[static_cast<std::size_t>(i / repeats)] + size * (i % repeats);
}

NormalisedBytes normalised_bytes(const Normalization& normalization) {
  NormalisedBytes table(normalization.mean.size());
  for (std::size_t c = 0; c < table.size(); ++c)
    for (std::size_t byte = 0; byte < 256; ++byte)  // rounds like torchvision's transforms, step by step
      table[c][byte] = (static_cast<float>(byte) / 255.0f - normalization.mean[c]) / normalization.std[c];
  return table;
}

float* normalise(const std::uint8_t* image, std::int64_t plane, const NormalisedBytes& table, float* out) {
  for (const auto& values : table) {
    const std::uint8_t* const end = image + plane;
    while (image != end) *out++ = values[*image++];
  }
  return out;
}

BatchFiller::BatchFiller(const Dataset& dataset, bool augment, std::uint64_t seed)
    : dataset_(dataset),
      classes_(dataset.classes()),
      augment_(augment),
      augmentation_(dataset.augmentation()),
      seed_(seed) {
  const Shape shape = dataset.image_shape();
  if (shape.rank() != 3)
    throw Error(ErrorCode::usage,
                "a loader requires images of shape (C,H,W), but the data set's are " + to_string(shape));
  channels_ = shape[0];
  rows_ = shape[1];
  columns_ = shape[2];
  require_valid(augmentation_, shape);
  if (!augment) augmentation_ = {};
  changes_bytes_ = changes_bytes(augmentation_);
  spare_bytes_ = spare_bytes(augmentation_, shape.numel());
  scratch_bytes_ = dp::scratch_bytes(augmentation_, shape.numel());
  const Normalization& normalization = dataset.normalization();
  const auto channels = static_cast<std::size_t>(channels_);
  if (normalization.mean.size() != channels || normalization.std.size() != channels ||
      !std::all_of(normalization.std.begin(), normalization.std.end(), [](float std) { return std > 0; }))
    throw Error(ErrorCode::usage, "a dataset of " + std::to_string(channels_) +
                                      " channels needs as many means and positive deviations to be normalised");
  table_ = normalised_bytes(normalization);
}

void BatchFiller::fill(Batch& batch, std::span<const std::int64_t> samples, std::int64_t epoch,
                       std::span<std::uint8_t> scratch, const std::atomic<bool>& cancelled) const {
  const bool resident = batch.resident.set != nullptr;
  batch.resident.augment = augment_;
  batch.resident.seed = seed_;
  batch.resident.epoch = static_cast<std::uint64_t>(epoch);
  float* out = resident ? nullptr : batch.images.data<float>();
  auto* labels = batch.labels.data<std::int32_t>();
  float* targets = dataset_.has_targets() ? batch.targets.data<float>() : nullptr;
  auto* indices = batch.samples.data<std::int64_t>();
  for (const std::int64_t place : samples) {
    if (cancelled) return;
    const std::int64_t sample = place % dataset_.size();
    const std::int32_t label = checked_label(dataset_, sample);
    if (resident) {
      // The device makes the image from its resident bytes.
    } else if (augment_) {
      copy_augmented({epoch, place}, scratch, out);
    } else {
      dataset_.read(sample, scratch.first(image_bytes()), nullptr);
      normalise(scratch.data(), rows_ * columns_, table_, out);
    }
    if (!resident) out += image_bytes();
    *labels++ = label;
    if (targets != nullptr) {
      dataset_.targets(sample, {targets, static_cast<std::size_t>(classes_)});
      targets += batch.targets.shape()[1];
    }
    *indices++ = resident ? sample : place;
  }
}

namespace {

// Copies the part of a plane that the crop selects; what lies outside the plane is byte 0. `of` maps each byte.
template <typename To, typename Function>
To* copy_part(const std::uint8_t* plane, std::int64_t rows, std::int64_t columns, const Crop& crop, bool upside_down,
              const Function& of, To* out) {
  for (std::int64_t y = 0; y < rows; ++y) {
    const std::int64_t from_y = (upside_down ? rows - 1 - y : y) + crop.down;
    const bool row_inside = from_y >= 0 && from_y < rows;
    for (std::int64_t x = 0; x < columns; ++x) {
      const std::int64_t from_x = (crop.flip ? columns - 1 - x : x) + crop.right;
      const bool inside = row_inside && from_x >= 0 && from_x < columns;
      *out++ = of[inside ? plane[from_y * columns + from_x] : 0];
    }
  }
  return out;
}

struct Unchanged {
  std::uint8_t operator[](std::uint8_t byte) const { return byte; }
};

}  // namespace

// `scratch`: what vary() needs, the image as it is read, and its crop if bytes change.
void BatchFiller::copy_augmented(const Key& key, std::span<std::uint8_t> scratch, float* out) const {
  std::uint8_t* const in = scratch.data() + spare_bytes_;
  Random random(seed_, RandomUse::augment, static_cast<std::uint64_t>(key.epoch),
                static_cast<std::uint64_t>(key.sample));
  dataset_.read(key.sample % dataset_.size(), {in, image_bytes()}, &random);
  Crop crop = draw_crop(random, augmentation_.padding.value_or(0), augmentation_.flip == Flip::random);
  if (augmentation_.flip == Flip::alternating) crop.flip = alternates(seed_, key.epoch, key.sample);
  const bool upside_down = augmentation_.vflip.value_or(false) && random.below(2) == 1;
  const std::int64_t pixels = rows_ * columns_;
  if (changes_bytes_) {
    const Planes part{in + image_bytes(), channels_, rows_, columns_};
    std::uint8_t* to = part.bytes;
    for (std::int64_t c = 0; c < channels_; ++c)
      to = copy_part(in + c * pixels, rows_, columns_, crop, upside_down, Unchanged{}, to);
    vary(part, augmentation_, random, scratch.first(spare_bytes_));
    normalise(part.bytes, rows_ * columns_, table_, out);
  } else if (crop.down == 0 && crop.right == 0 && !crop.flip && !upside_down) {
    normalise(in, rows_ * columns_, table_, out);
  } else {
    float* to = out;
    for (std::int64_t c = 0; c < channels_; ++c)
      to = copy_part(in + c * pixels, rows_, columns_, crop, upside_down, table_[static_cast<std::size_t>(c)], to);
  }
  const float erased = augmentation_.random_erase.value_or(0);
  if (erased > 0 && random.uniform() < erased)
    if (const auto rectangle = random_rectangle(rows_, columns_, random))
      erase(out, channels_, pixels, columns_, *rectangle);
}

namespace {

constexpr auto kTick = std::chrono::milliseconds(50);  // between calls of options.stop
constexpr int kHeld = 2;                               // valid batches: the current one and the one before

void check_targets(const Dataset& dataset, const LoaderOptions& options) {
  const TargetOptions& targets = options.targets;
  const auto require = [](bool good, const std::string& rule) {
    if (!good) throw Error(ErrorCode::usage, rule);
  };
  require(!targets.sample_weights || dataset.has_weights(), "the data set has no weights of samples");
  require(!dataset.has_targets() || !(targets.mixes() || !targets.class_weights.empty()),
          "mixed images and weights of classes need class numbers, and the data set has targets");
  for (const double alpha : {targets.mixup_alpha, targets.cutmix_alpha})
    require(alpha == 0 || (alpha >= 1e-3 && alpha <= 4),
            "the alpha of mixup or cutmix is " + std::to_string(alpha) + "; give 0, or 0.001 to 4");
  require(!targets.mixes() || !options.resident,
          "device-resident images cannot be mixed; use batches with images, or set mixup_alpha and cutmix_alpha to 0");
  const auto& weights = targets.class_weights;
  require(weights.empty() || static_cast<std::int64_t>(weights.size()) == dataset.classes(),
          std::to_string(weights.size()) + " weights of classes do not fit the " + std::to_string(dataset.classes()) +
              " classes of the data set; give one for each");
  require(std::ranges::all_of(weights, [](float weight) { return weight >= 0 && std::isfinite(weight); }),
          "the weights of classes must be at least 0");
  require(targets.label_smoothing >= 0 && targets.label_smoothing < 1, "label_smoothing must be in [0, 1)");
}

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::usage, what); };
  if (!dataset || dataset->size() == 0) refuse("an empty dataset cannot be loaded; give one with samples");
  const std::int64_t size = dataset->size();
  if (size > INT64_C(0xffffffff))
    refuse("a dataset of " + std::to_string(size) + " samples is too large; the limit is 4294967295");
  if (options.batch_size < 1) refuse("the batch size is " + std::to_string(options.batch_size) + "; give 1 or more");
  if (options.drop_last && size < options.batch_size)
    refuse("a batch of " + std::to_string(options.batch_size) + " is larger than the data set of " +
           std::to_string(size) +
           " samples, and incomplete batches are dropped; use a smaller --batch-size, or remove --drop-last");
  if (options.workers < 1)
    refuse("the number of loader threads is " + std::to_string(options.workers) + "; give 1 or more");
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks)
    refuse("rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks) +
           " does not exist; ranks count from 0");
  if (options.batch_size < options.ranks)
    refuse("a global batch of " + std::to_string(options.batch_size) + " is less than the " +
           std::to_string(options.ranks) + " ranks; give at least one sample per rank");
  if (options.resident && options.resident->images.shape() != dataset->image_shape().prepended(size))
    refuse("the device-resident images have shape " + to_string(options.resident->images.shape()) +
           ", but the dataset has " + std::to_string(size) + " of " + to_string(dataset->image_shape()) +
           "; use read_images() of that dataset");
  if (options.targets.any()) check_targets(*dataset, options);
  if (options.repeats < 1 || (options.balanced && options.repeats > 1))
    refuse("each sample is repeated " + std::to_string(options.repeats) +
           " times; give 1 or more, and 1 with classes that occur equally often");
  if (options.repeats > 1 && !options.shuffle)
    refuse("repeated samples need a random order: without it, an epoch always has the same few of them");
  if (options.balanced && (!options.shuffle || dataset->has_targets()))
    refuse("classes that occur equally often need class numbers and a random order");
  if (options.resident && (options.balanced || options.repeats > 1))
    refuse("samples that occur again need batches with images, not device-resident ones");
  if (const std::string option = only_on_host(dataset->augmentation());
      options.resident && options.augment && !option.empty())
    refuse(option + " does not work with a device-resident data set; use --images-on host");
  if (options.slots <= kHeld)
    refuse("the number of loader slots is " + std::to_string(options.slots) + "; give " + std::to_string(kHeld + 1) +
           " or more");
  return dataset;
}

Batch make_batch(const Dataset& dataset, std::int64_t size, const LoaderOptions& options) {
  Batch batch{options.resident ? Tensor() : Tensor(dataset.image_shape().prepended(size)),
              Tensor(Shape{size}, DType::i32), Tensor(Shape{size}, DType::i64)};
  const std::int64_t columns = std::max(options.targets.classes, dataset.classes());
  if (dataset.has_targets() || options.targets.any())
    batch.targets = Tensor(Shape{size, columns + options.targets.sample_weights});
  batch.resident.set = options.resident;
  return batch;
}

Batch first_rows(const Batch& batch, std::int64_t size) {
  Batch first{batch.resident.set ? Tensor() : batch.images.rows(0, size), batch.labels.rows(0, size),
              batch.samples.rows(0, size)};
  first.resident = batch.resident;
  if (!batch.targets.empty()) first.targets = batch.targets.rows(0, size);
  return first;
}

// This rank's number of samples in a global batch of `batch` samples, which are dealt round-robin to the ranks.
std::int64_t share(std::int64_t batch, const LoaderOptions& options) {
  return (batch + options.ranks - 1 - options.rank) / options.ranks;
}

struct Slot {
  Batch full, last;          // share memory; `last` has the size of the epoch's last batch
  std::int64_t ready = -1;   // ticket of the finished batch in this slot, or -1
  std::exception_ptr error;  // set if that batch failed
};

}  // namespace

// A ticket is the number of a batch since construction, across epochs. The batch of ticket t is in slot t % slots.
// Worker w makes tickets begin + w, begin + w + workers, ... of an epoch. It may start ticket t once ticket t - slots
// is released. The consumer releases ticket t - slots by taking ticket t - slots + kHeld.
struct Loader::State {
  State(std::shared_ptr<const Dataset> data, const LoaderOptions& chosen)
      : dataset(checked(std::move(data), chosen)),
        options(chosen),
        filler(*dataset, options.augment, options.seed),
        order(static_cast<std::size_t>(dataset->size())) {
    const std::int64_t size = dataset->size();
    batch_rows = std::min(options.batch_size, padded(size));
    batches = options.drop_last ? size / batch_rows : (size + batch_rows - 1) / batch_rows;
    last_rows = std::min(batch_rows, padded(size - (batches - 1) * batch_rows));
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(options.slots, batches));
    slots.resize(std::max<std::size_t>(count, kHeld + (options.ranks > 1 ? 2 : 1)));
    for (Slot& slot : slots) {
      slot.full = make_batch(*dataset, share(batch_rows, options), options);
      slot.last = first_rows(slot.full, share(last_rows, options));
      if (options.ranks > 1) slot.full.global = batch_rows, slot.last.global = last_rows;
    }
    if (options.ranks > 1) own_samples.resize(static_cast<std::size_t>(batches * share(batch_rows, options)));
    scratch.assign(static_cast<std::size_t>(options.workers), std::vector<std::uint8_t>(filler.scratch_bytes()));
    threads.reserve(static_cast<std::size_t>(options.workers));
    try {
      for (int worker = 0; worker < options.workers; ++worker) threads.emplace_back([this, worker] { work(worker); });
    } catch (const std::system_error& error) {
      const std::size_t started = threads.size();
      stop();
      throw Error(ErrorCode::device, "only " + std::to_string(started) + " of " + std::to_string(options.workers) +
                                         " loader threads could be started (" + error.code().message() +
                                         "); use fewer workers (-j), or raise ulimit -u and -v");
    }
  }

  ~State() { stop(); }

  void stop() {
    {
      const std::scoped_lock lock(mutex);
      stopping = true;
    }
    wake_workers.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Slot& slot_of(std::int64_t ticket) { return slots[static_cast<std::size_t>(ticket) % slots.size()]; }
  std::int64_t batch_of(std::int64_t ticket) const { return batches - (end - ticket); }
  Batch& content(Slot& slot, std::int64_t ticket) { return ticket == end - 1 ? slot.last : slot.full; }
  bool may_make(std::int64_t ticket) const {
    return ticket < end && ticket < released + static_cast<std::int64_t>(slots.size());
  }

  void work(int worker) {
    leave_inherited_core();
    ::pthread_setname_np(::pthread_self(), "loader");
    std::unique_lock lock(mutex);
    std::int64_t seen_run = 0, ticket = 0;
    for (;;) {
      wake_workers.wait(lock, [&] { return stopping || (run == seen_run ? may_make(ticket) : end > taken); });
      if (stopping) return;
      if (run != seen_run) {
        seen_run = run;
        ticket = begin + worker;
        continue;
      }
      ++busy;
      Slot& slot = slot_of(ticket);
      Batch& into = content(slot, ticket);
      const std::int64_t batch = batch_of(ticket);
      lock.unlock();
      std::exception_ptr error;
      try {
        fill(into, batch, scratch[static_cast<std::size_t>(worker)]);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --busy;
      slot.ready = ticket;
      slot.error = std::move(error);
      ticket += options.workers;
      wake_consumer.notify_one();
    }
  }

  void fill(Batch& into, std::int64_t batch, std::span<std::uint8_t> image) const {
    const std::vector<std::int64_t>& samples = options.ranks > 1 ? own_samples : order;
    const std::int64_t from = batch * slots.front().full.size();
    filler.fill(into, std::span(samples).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(into.size())),
                epoch, image, stopping);
    if (options.targets.any() && !stopping) make_targets(into, batch);
  }

  void make_targets(Batch& into, std::int64_t batch) const {
    Random random(options.seed, RandomUse::mix, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(batch));
    const Mix mix = draw_mix(options.targets, dataset->image_shape(), random);
    if (options.targets.sample_weights) fill_weights(mix.own, into);
    if (dataset->has_targets()) return;
    if (options.targets.mixes()) mix_images(mix, into.images.data<float>(), into.size(), dataset->image_shape());
    const bool averages = !options.targets.mixes() && !options.targets.class_weights.empty();
    const double factor = averages ? weight_factor(batch) : 1;
    const std::int64_t columns = into.targets.shape()[1];
    fill_targets(mix, options.targets, into.labels.span<std::int32_t>(), factor,
                 columns - options.targets.sample_weights, columns, into.targets.data<float>());
  }

  void fill_weights(double own, Batch& into) const {
    const std::int64_t rows = into.size(), columns = into.targets.shape()[1];
    const auto weight = [&](std::int64_t row) {
      return static_cast<double>(dataset->weight(into.samples.data<std::int64_t>()[row] % dataset->size()));
    };
    for (std::int64_t row = 0; row < rows; ++row)
      into.targets.data<float>()[(row + 1) * columns - 1] =
          static_cast<float>(own * weight(row) + (1 - own) * weight(rows - 1 - row));
  }

  // Returns the number of samples in a global batch, divided by the sum of the weights of their classes.
  double weight_factor(std::int64_t batch) const {
    const std::int64_t rows = batch + 1 == batches ? last_rows : batch_rows;
    double sum = 0;
    for (std::int64_t i = batch * batch_rows; i < batch * batch_rows + rows; ++i) {
      const std::int64_t sample = order[static_cast<std::size_t>(i) % order.size()] % dataset->size();
      const auto label = static_cast<std::size_t>(dataset->label(sample));
      if (label < options.targets.class_weights.size())
        sum += static_cast<double>(options.targets.class_weights[label]);
    }
    return sum > 0 ? static_cast<double>(rows) / sum : 0;
  }

  std::int64_t padded(std::int64_t samples) const {
    return options.pad ? (samples + options.ranks - 1) / options.ranks * options.ranks : samples;
  }

  // Fills own_samples with this rank's shard of each batch of `order`. Padding wraps around to the epoch's beginning.
  void take_own_samples() {
    const auto size = static_cast<std::int64_t>(order.size());
    const std::int64_t own = share(batch_rows, options);
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      const std::int64_t rows = batch + 1 == batches ? last_rows : batch_rows;
      for (std::int64_t i = 0; i < share(rows, options); ++i)
        own_samples[static_cast<std::size_t>(batch * own + i)] =
            order[static_cast<std::size_t>((batch * batch_rows + options.rank + i * options.ranks) % size)];
    }
  }

  // Cancels all open tickets and waits until no worker uses a slot or `order`. Batches already taken stay unchanged.
  void drain() {
    std::unique_lock lock(mutex);
    end = taken;
    wake_consumer.wait(lock, [this] { return busy == 0; });
    for (Slot& slot : slots) {
      slot.ready = -1;
      slot.error = nullptr;
    }
  }

  void start(std::int64_t new_epoch, std::int64_t first_batch) {
    if (new_epoch < 0 || first_batch < 0 || first_batch > batches)
      throw Error(ErrorCode::usage, "epoch " + std::to_string(new_epoch) + " cannot start at batch " +
                                        std::to_string(first_batch) + "; an epoch has the batches 0 to " +
                                        std::to_string(batches - 1));
    drain();
    epoch = new_epoch;
    fill_order(order, options, options.balanced ? dataset.get() : nullptr, epoch);
    if (options.ranks > 1) take_own_samples();
    {
      const std::scoped_lock lock(mutex);
      begin = taken;
      end = begin + batches - first_batch;
      ++run;
    }
    wake_workers.notify_all();
  }

  const Batch* next() {
    std::unique_lock lock(mutex);
    if (run == 0) throw Error(ErrorCode::usage, "no epoch was started; call start() before next()");
    if (taken == end || stopping) return nullptr;
    if (taken - kHeld + 1 > released) {
      released = taken - kHeld + 1;
      wake_workers.notify_all();
    }
    if (!wait_for(lock, taken)) return nullptr;
    const std::int64_t ticket = taken++;
    return &content(slot_of(ticket), ticket);
  }

  bool await(std::int64_t count) {
    std::unique_lock lock(mutex);
    if (run == 0) throw Error(ErrorCode::usage, "no epoch was started; call start() before await()");
    const std::int64_t most = static_cast<std::int64_t>(slots.size()) - kHeld;  // the others hold valid batches
    for (std::int64_t ticket = taken; ticket < std::min(taken + std::min(count, most), end); ++ticket)
      if (stopping || !wait_for(lock, ticket)) return false;
    return true;
  }

  // Waits for the batch of `ticket`. Returns false once options.stop has ended the wait.
  bool wait_for(std::unique_lock<std::mutex>& lock, std::int64_t ticket) {
    const Slot& slot = slot_of(ticket);
    const auto ready = [&] { return slot.ready == ticket; };
    if (!options.stop) wake_consumer.wait(lock, ready);
    while (options.stop && !wake_consumer.wait_for(lock, kTick, ready)) {
      lock.unlock();
      const bool stop = options.stop();
      lock.lock();
      if (!stop || ready()) continue;
      stopping = true;
      wake_workers.notify_all();
      return false;
    }
    if (slot.error) std::rethrow_exception(slot.error);
    return true;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const BatchFiller filler;
  std::int64_t batches = 0, batch_rows = 0, last_rows = 0;  // per epoch; samples in a global batch; in the last one

  // Written only by start(), while no worker is busy.
  std::vector<std::int64_t> order, own_samples;
  std::int64_t epoch = 0;

  std::vector<std::vector<std::uint8_t>> scratch;  // one buffer per worker

  // Guarded by the mutex. A slot's batch belongs to its worker until `ready` is its ticket.
  std::mutex mutex;
  std::condition_variable wake_workers, wake_consumer;
  std::vector<Slot> slots;
  std::int64_t run = 0;                  // counts calls of start()
  std::int64_t begin = 0, end = 0;       // ticket range of this run
  std::int64_t released = 0, taken = 0;  // the lowest ticket that must stay valid; the next ticket to take
  int busy = 0;
  std::atomic<bool> stopping{false};  // written under the mutex; workers check it before each image

  std::vector<std::thread> threads;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : state_(std::make_unique<State>(std::move(dataset), options)) {}

Loader::~Loader() = default;

void Loader::start(std::int64_t epoch, std::int64_t first_batch) { state_->start(epoch, first_batch); }

const Batch* Loader::next() { return state_->next(); }

bool Loader::await(std::int64_t count) { return state_->await(count); }

std::int64_t Loader::batches_per_epoch() const { return state_->batches; }

std::vector<std::int64_t> Loader::batch_sizes() const {
  const State& s = *state_;
  std::vector<std::int64_t> sizes;
  if (s.batches > 1 || s.last_rows == s.batch_rows) sizes.push_back(share(s.batch_rows, s.options));
  if (s.last_rows != s.batch_rows && share(s.last_rows, s.options) > 0) sizes.push_back(share(s.last_rows, s.options));
  return sizes;
}

const Dataset& Loader::dataset() const { return *state_->dataset; }

DeviceImages Loader::resident() const {
  return {state_->options.resident, state_->options.augment, state_->options.seed};
}

std::vector<std::int64_t> Loader::order(std::int64_t epoch) const {
  std::vector<std::int64_t> order(state_->order.size());
  fill_order(order, state_->options, state_->options.balanced ? state_->dataset.get() : nullptr, epoch);
  return order;
}

}  // namespace dp
