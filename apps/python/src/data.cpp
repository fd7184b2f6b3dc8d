// Data sets of arrays, of Python objects, and those of dp::datasets; the loader.
#include "data.h"

#include <dp/loader.h>
#include <nanobind/trampoline.h>
#include <algorithm>
#include <cstring>
#include <map>

#include "compute_thread.h"

namespace dp_python {
namespace {

struct Description {
  dp::Shape image;
  std::int64_t classes = 0;
  std::vector<std::string> names;
  dp::Normalization normalization;
};

using Numbers = std::optional<std::vector<float>>;

Description describe(const dp::Shape& image, std::int64_t classes, const std::optional<std::vector<std::string>>& names,
                     const Numbers& mean, const Numbers& std) {
  if (image.rank() != 3) refuse("the shape of an image is (C, H, W), not " + dp::to_string(image));
  const auto channels = static_cast<std::size_t>(image[0]);
  Description result{image,
                     classes,
                     names.value_or(std::vector<std::string>()),
                     {mean.value_or(std::vector<float>(channels, 0)), std.value_or(std::vector<float>(channels, 1))}};
  if (result.normalization.mean.size() != channels || result.normalization.std.size() != channels)
    refuse("mean and std must have one number for each of the " + std::to_string(channels) + " channels");
  if (!result.names.empty() && result.names.size() != static_cast<std::size_t>(classes))
    refuse("class_names has " + std::to_string(result.names.size()) + " names for " + std::to_string(classes) +
           " classes");
  return result;
}

class Described : public dp::Dataset {
 public:
  explicit Described(Description description) : description_(std::move(description)) {}
  dp::Shape image_shape() const override { return description_.image; }
  std::int64_t classes() const override { return description_.classes; }
  std::vector<std::string> class_names() const override { return description_.names; }
  const dp::Normalization& normalization() const override { return description_.normalization; }
  bool varies() const override { return false; }

 private:
  Description description_;
};

// Images and labels in arrays, which are shared.
class ArrayDataset : public Described {
 public:
  ArrayDataset(Description description, dp::Tensor images, dp::Tensor labels, dp::Tensor targets, dp::Tensor weights)
      : Described(std::move(description)),
        images_(std::move(images)),
        labels_(std::move(labels)),
        targets_(std::move(targets)),
        weights_(std::move(weights)) {}
  std::int64_t size() const override { return images_.shape()[0]; }
  std::int32_t label(std::int64_t index) const override {
    return labels_.empty() ? 0 : labels_.data<std::int32_t>()[index];
  }
  bool has_targets() const override { return !targets_.empty(); }
  void targets(std::int64_t index, std::span<float> out) const override {
    std::copy_n(targets_.data<float>() + index * classes(), out.size(), out.data());
  }
  bool has_weights() const override { return !weights_.empty(); }
  float weight(std::int64_t index) const override { return weights_.empty() ? 1 : weights_.data<float>()[index]; }
  void read(std::int64_t index, std::span<std::uint8_t> out, dp::Random*) const override {
    std::memcpy(out.data(), images_.data<std::uint8_t>() + static_cast<std::size_t>(index) * out.size(), out.size());
  }

 private:
  dp::Tensor images_, labels_, targets_, weights_;
};

SharedDataset from_arrays(const Array& images, const std::optional<Array>& labels, const std::optional<Array>& targets,
                          std::optional<std::int64_t> classes, const std::optional<std::vector<std::string>>& names,
                          const Numbers& mean, const Numbers& std, const std::optional<Array>& weights) {
  const dp::Tensor pixels = bytes_of(images, "images");
  if (pixels.shape().rank() != 4)
    refuse("images must have the shape (N, C, H, W), not " + dp::to_string(pixels.shape()));
  if (labels.has_value() == targets.has_value()) refuse("give either labels or targets");
  dp::Tensor numbers, values, factors;
  const auto check = [&](const dp::Tensor& tensor, int rank, const char* what) {
    if (tensor.shape().rank() != rank || tensor.shape()[0] != pixels.shape()[0])
      refuse(std::string(what) + " of the shape " + dp::to_string(tensor.shape()) + " do not fit " +
             std::to_string(pixels.shape()[0]) + " images");
  };
  std::int64_t count = classes.value_or(static_cast<std::int64_t>(names ? names->size() : 0));
  if (labels) {
    check(numbers = labels_of(*labels), 1, "labels");
    const auto all = numbers.span<std::int32_t>();
    if (all.empty()) refuse("there are no images");
    const auto [least, most] = std::ranges::minmax(all);
    if (count == 0) count = std::int64_t{most} + 1;
    if (least < 0 || most >= count)
      refuse("label " + std::to_string(least < 0 ? least : most) + " is not from 0 to " + std::to_string(count - 1));
  } else {
    check(values = floats_of(*targets, "targets"), 2, "targets");
    count = values.shape()[1];
  }
  if (weights) check(factors = floats_of(*weights, "weights"), 1, "weights");
  return std::make_shared<ArrayDataset>(describe(pixels.shape().without_first(), count, names, mean, std), pixels,
                                        numbers, values, factors);
}

// A class of Python. Loader threads call it, with the interpreter lock.
class PythonDataset : public Described {
 public:
  NB_TRAMPOLINE(Described);

  std::int64_t size() const override {
    const nb::gil_scoped_acquire acquire;
    return static_cast<std::int64_t>(nb::len(self()));
  }
  std::int32_t label(std::int64_t index) const override {
    const nb::gil_scoped_acquire acquire;
    const auto label = nb::cast<std::int64_t>(nb::int_(self().attr("label")(index)));
    if (label < 0 || label >= classes())
      refuse("label " + std::to_string(label) + " of sample " + std::to_string(index) + " is not from 0 to " +
             std::to_string(classes() - 1));
    return static_cast<std::int32_t>(label);
  }
  void read(std::int64_t index, std::span<std::uint8_t> out, dp::Random*) const override {
    const nb::gil_scoped_acquire acquire;
    Array image;
    const nb::object sample = self()[index];
    if (!nb::try_cast(nb::object(sample[0]), image) || image.dtype() != nb::dtype<std::uint8_t>() ||
        tensor_of(image).shape() != image_shape())
      refuse("sample " + std::to_string(index) + " is not an image of type uint8 and shape " +
             dp::to_string(image_shape()) + " with a label");
    std::memcpy(out.data(), image.data(), out.size());
  }
  std::string sample_id(std::int64_t index) const override {
    const nb::gil_scoped_acquire acquire;
    return nb::str(self().attr("sample_id")(index)).c_str();
  }

 private:
  nb::object self() const { return nb::borrow(nb_trampoline.base()); }
};

nb::object image_of(const dp::Dataset& self, std::int64_t index) {
  dp::Tensor pixels(self.image_shape(), dp::DType::u8);
  const std::int64_t size = self.size();
  if (index < -size || index >= size) throw nb::index_error("no such sample");
  if (index < 0) index += size;
  {
    const nb::gil_scoped_release release;
    self.read(index, pixels.span<std::uint8_t>(), nullptr);
  }
  if (!self.has_targets()) return nb::make_tuple(array_of(pixels), self.label(index));
  dp::Tensor targets({self.classes()});
  self.targets(index, targets.span<float>());
  return nb::make_tuple(array_of(pixels), array_of(targets));
}

std::pair<SharedDataset, SharedDataset> pair_of(const dp::DatasetPair& pair) {
  return {shared(pair.train), shared(pair.test)};
}

// The methods of the base class. Python calls them on a subclass that does not define its own.
bool is_subclass(const dp::Dataset& self) { return dynamic_cast<const PythonDataset*>(&self) != nullptr; }

[[noreturn]] void refuse_undefined(const char* method) {
  throw nb::type_error((std::string("a subclass of dp.Dataset must define ") + method).c_str());
}

void bind_dataset(nb::module_& m) {
  nb::class_<dp::Dataset, PythonDataset>(m, "Dataset",
                                         "Labelled images of one shape.\n\nA subclass in Python has __len__(), and "
                                         "__getitem__(index), which returns an image "
                                         "and its class number: uint8, (C, H, W). Loader threads call them. It may "
                                         "have label(index), which saves reading the "
                                         "image, and sample_id(index).")
      .def(
          "__init__",
          [](dp::Dataset* self, const dp::Shape& image_shape, std::int64_t classes,
             const std::optional<std::vector<std::string>>& names, const Numbers& mean, const Numbers& std) {
            new (static_cast<void*>(self)) PythonDataset(describe(image_shape, classes, names, mean, std));
          },
          "image_shape"_a, "classes"_a, nb::kw_only(), "class_names"_a = nb::none(), "mean"_a = nb::none(),
          "std"_a = nb::none(), "mean, std: of x / 255, per channel; without them images are from 0 to 1.")
      .def("__len__",
           [](const dp::Dataset& self) {
             if (is_subclass(self)) refuse_undefined("__len__");
             return self.size();
           })
      .def(
          "__getitem__",
          [](const dp::Dataset& self, std::int64_t index) {
            if (is_subclass(self)) refuse_undefined("__getitem__");
            return image_of(self, index);
          },
          "index"_a, "An image (C, H, W) of uint8, and its label or targets.")
      .def(
          "label",
          [](nb::handle self, std::int64_t index) {
            const auto& dataset = nb::cast<const dp::Dataset&>(self);
            return is_subclass(dataset) ? nb::object(self[index][1]) : nb::cast(dataset.label(index));
          },
          "index"_a, "The class number of a sample.")
      .def(
          "sample_id",
          [](const dp::Dataset& self, std::int64_t index) {
            return is_subclass(self) ? std::string() : self.sample_id(index);
          },
          "index"_a,
          "What identifies a sample besides its class, such as a path. A resumed run with other samples says so.")
      .def_prop_ro("image_shape", &dp::Dataset::image_shape, "(C, H, W).")
      .def_prop_ro("classes", &dp::Dataset::classes, "Number of classes, or of the targets of a sample.")
      .def_prop_ro("class_names", &dp::Dataset::class_names, "Name of each class, or an empty list.")
      .def_prop_ro(
          "mean", [](const dp::Dataset& self) { return self.normalization().mean; }, "Of x / 255, per channel.")
      .def_prop_ro(
          "std", [](const dp::Dataset& self) { return self.normalization().std; }, "Of x / 255, per channel.")
      .def(
          "check",
          [](const dp::Dataset& self, int threads) {
            dp::ImageCheck check;
            {
              const nb::gil_scoped_release release;
              check = dp::check_images(self, threads);
            }
            return nb::make_tuple(check.faults, check.measured.mean, check.measured.std);
          },
          "threads"_a = 0, "Reads every image. Returns the faults, and the mean and deviation of x / 255 per channel.");
  m.def("from_arrays", &from_arrays, "images"_a, "labels"_a = nb::none(), nb::kw_only(), "targets"_a = nb::none(),
        "classes"_a = nb::none(), "class_names"_a = nb::none(), "mean"_a = nb::none(), "std"_a = nb::none(),
        "weights"_a = nb::none(),
        "A data set of arrays, which are shared, not copied, if they are contiguous.\n\nimages: uint8, (N, C, H, W). "
        "labels: int32, (N). targets: instead of labels, float32, (N, outputs). mean, std: of x / 255, per channel. "
        "weights: factors of the loss, (N).");
}

void bind_datasets(nb::module_& m) {
  m.def(
      "digits",
      [](std::int64_t train, std::int64_t test, std::uint64_t seed) {
        return pair_of(dp::datasets::digits(train, test, seed));
      },
      "train"_a = 60000, "test"_a = 10000, "seed"_a = 42, "Digits drawn with strokes: 28x28, ten classes, no files.");
  m.def(
      "synthetic",
      [](const dp::Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test, std::uint64_t seed) {
        return pair_of(dp::datasets::synthetic(image, classes, train, test, seed));
      },
      "image"_a, "classes"_a, "train"_a, "test"_a, "seed"_a = 42, "Random bytes and labels.");
  const auto file_set = [&](const char* name, dp::DatasetPair (*open)(const std::string&), const char* text) {
    m.def(
        name,
        [open](const std::string& folder) {
          dp::DatasetPair pair;
          {
            const nb::gil_scoped_release release;
            pair = open(folder);
          }
          return pair_of(pair);
        },
        "folder"_a, text);
  };
  file_set("mnist", dp::datasets::mnist, "The IDX files of MNIST.");
  file_set("fashion_mnist", dp::datasets::fashion_mnist, "The IDX files of Fashion-MNIST.");
  file_set("cifar10", dp::datasets::cifar10, "The binary files of CIFAR-10.");
  file_set("cifar100", dp::datasets::cifar100, "The binary files of CIFAR-100.");
  const auto image_set = [&](const char* name,
                             dp::DatasetPair (*open)(const std::string&, std::int64_t, const dp::Resizing&),
                             const char* text) {
    m.def(
        name,
        [open](const std::string& folder, std::int64_t side, const std::string& interpolation, double crop_pct) {
          dp::DatasetPair pair;
          const dp::Resizing resizing{
              choose<dp::Interpolation>("interpolation", interpolation, {"nearest", "bilinear", "bicubic"}), crop_pct};
          {
            const nb::gil_scoped_release release;
            pair = open(folder, side, resizing);
          }
          return pair_of(pair);
        },
        "folder"_a, "side"_a = 224, nb::kw_only(), "interpolation"_a = "bilinear", "crop_pct"_a = 0.875, text);
  };
  image_set("image_folder", dp::datasets::image_folder,
            "JPEG, PNG and WebP files: <folder>/train/<class>/<image>, and val/.");
  image_set("image_list", dp::datasets::image_list,
            "Image files listed in <folder>/train.csv and val.csv: path,class.");
  image_set("image_targets", dp::datasets::image_targets, "Image files with numbers as targets: path,number,...");
  image_set("image_shards", dp::datasets::image_shards, "Images in tar files, as WebDataset writes them.");
  m.def(
      "split_off",
      [](const SharedDataset& dataset, double share, std::uint64_t seed) {
        return pair_of(dp::split_off(dataset, share, seed));
      },
      "dataset"_a, "share"_a, "seed"_a = 42,
      "Divides a data set into training and test images: `share` of the images of each class are for testing.");
  m.def(
      "with_classes",
      [](const SharedDataset& train, const SharedDataset& test, const std::vector<std::string>& classes) {
        return pair_of(dp::with_classes({train, test}, classes));
      },
      "train"_a, "test"_a, "classes"_a, "The same images with the labels of another list of classes, matched by name.");
}

// Destroyed without the interpreter lock: its threads may wait for it.
class PythonLoader : public ClosedAtExit {
 public:
  PythonLoader(const SharedDataset& dataset, const dp::LoaderOptions& options) {
    const nb::gil_scoped_release release;
    loader_ = std::make_unique<dp::Loader>(dataset, options);
  }
  ~PythonLoader() override { PythonLoader::close(); }
  void close() override {
    const nb::gil_scoped_release release;
    loader_.reset();
  }

  dp::Loader& operator*() {
    if (!loader_) refuse("the loader is closed: the interpreter ends");
    return *loader_;
  }
  void start(std::int64_t epoch) {
    const nb::gil_scoped_release release;
    (**this).start(epoch);
  }
  const dp::Batch& next() {
    const dp::Batch* batch = nullptr;
    {
      const nb::gil_scoped_release release;
      batch = (**this).next();
    }
    if (batch == nullptr) throw nb::stop_iteration();
    return *batch;
  }

 private:
  std::unique_ptr<dp::Loader> loader_;
};

void bind_loader(nb::module_& m) {
  const auto copy = [](const dp::Tensor& tensor) {
    return tensor.empty() ? std::nullopt : std::optional(array_of(tensor.clone()));
  };
  nb::class_<dp::Batch>(m, "Batch", "A minibatch of a Loader. It is valid until the second next is taken.")
      .def("__len__", &dp::Batch::size)
      .def_prop_ro(
          "images", [copy](const dp::Batch& self) { return copy(self.images); }, nb::rv_policy::automatic,
          "(B, C, H, W) float32, normalised; a copy.")
      .def_prop_ro(
          "labels", [copy](const dp::Batch& self) { return copy(self.labels); }, nb::rv_policy::automatic,
          "(B) int32; a copy.")
      .def_prop_ro(
          "targets", [copy](const dp::Batch& self) { return copy(self.targets); }, nb::rv_policy::automatic,
          "(B, N) float32, or None; a copy.")
      .def_prop_ro(
          "samples", [copy](const dp::Batch& self) { return copy(self.samples); }, nb::rv_policy::automatic,
          "(B) int64: indices in the data set; a copy.");
  nb::class_<PythonLoader>(m, "Loader",
                           "Minibatches, prepared ahead by threads. Their order depends on (seed, epoch) alone.")
      .def(
          "__init__",
          [](PythonLoader* self, const SharedDataset& dataset, std::int64_t batch_size, bool shuffle, bool augment,
             bool drop_last, bool balanced, std::uint64_t seed, int workers) {
            new (self) PythonLoader(dataset, {.batch_size = batch_size,
                                              .shuffle = shuffle,
                                              .balanced = balanced,
                                              .augment = augment,
                                              .drop_last = drop_last,
                                              .seed = seed,
                                              .workers = workers});
          },
          "dataset"_a, "batch_size"_a = 128, nb::kw_only(), "shuffle"_a = true, "augment"_a = false,
          "drop_last"_a = false, "balanced"_a = false, "seed"_a = 42, "workers"_a = 1)
      .def("__len__", [](PythonLoader& self) { return (*self).batches_per_epoch(); })
      .def(
          "epoch",
          [](nb::object self, std::int64_t epoch) {
            nb::cast<PythonLoader&>(self).start(epoch);
            return self;
          },
          "epoch"_a, "Starts this epoch; iterate over the result.")
      .def("__iter__", [](nb::object self) { return self; })
      .def("__next__", [](PythonLoader& self) { return dp::Batch(self.next()); });
}

}  // namespace

SharedDataset shared(const std::shared_ptr<const dp::Dataset>& dataset) {
  return std::const_pointer_cast<dp::Dataset>(dataset);
}

void bind_data(nb::module_& m) {
  bind_dataset(m);
  bind_datasets(m);
  bind_loader(m);
}

}  // namespace dp_python
