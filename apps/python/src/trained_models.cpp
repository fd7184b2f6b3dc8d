// Trained networks, weights in files, and models as JSON.
#include <dp/checkpoint.h>
#include <dp/trained_model.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <filesystem>

#include "convert.h"

namespace dp_python {
namespace {

using Path = std::filesystem::path;

void bind_trained_model(nb::module_& m) {
  nb::class_<dp::TrainedModel>(m, "TrainedModel",
                               "A trained network with its weights, class names, and how its images are prepared.")
      .def_ro("model", &dp::TrainedModel::model, "The network.")
      .def_prop_ro(
          "weights", [](const dp::TrainedModel& self) { return arrays_of(self.weights); },
          "Parameters and buffers as numpy arrays, which share the memory of this object.")
      .def_ro("classes", &dp::TrainedModel::classes, "Names of the outputs; empty: unknown.")
      .def_prop_ro(
          "mean",
          [](const dp::TrainedModel& self) {
            return self.preprocessing ? std::optional(self.preprocessing->normalization.mean) : std::nullopt;
          },
          "Of x / 255, per channel; None: unknown.")
      .def_prop_ro(
          "std",
          [](const dp::TrainedModel& self) {
            return self.preprocessing ? std::optional(self.preprocessing->normalization.std) : std::nullopt;
          },
          "Of x / 255, per channel; None: unknown.")
      .def("__repr__", [](const dp::TrainedModel& self) {
        return nb::str("<dp.TrainedModel {}: {} to {}>")
            .format(self.model.name(), self.model.input(), self.model.output());
      });
  m.def(
      "read_trained_model",
      [](const Path& path, const std::string& weights) {
        const auto which = choose<dp::WeightsOf>("weights", weights, {"automatic", "last_step", "average"});
        const nb::gil_scoped_release release;
        return dp::read_trained_model(path.string(), which);
      },
      "path"_a, "weights"_a = "automatic",
      "Reads a run folder, a checkpoint folder, or a file with weights that dp saved.\n\nweights: last_step, average, "
      "or "
      "automatic (their moving average, if there is one).");
}

}  // namespace

void bind_trained_models(nb::module_& m) {
  bind_trained_model(m);
  m.def(
      "model_to_json", [](const dp::Model& model) { return dp::to_json(model); }, "model"_a,
      "The layers of a model, without weights.");
  m.def(
      "model_from_json", [](const std::string& json) { return dp::model_from_json(json); }, "json"_a,
      "The model of model_to_json().");
  m.def(
      "read_safetensors",
      [](const Path& path) {
        Named tensors;
        {
          const nb::gil_scoped_release release;
          tensors = dp::read_safetensors(path.string());
        }
        return arrays_of(tensors);
      },
      "path"_a, "The tensors of a safetensors file as numpy arrays, by name.");
  m.def(
      "write_safetensors",
      [](const Path& path, const nb::dict& arrays, const std::map<std::string, std::string>& metadata) {
        const Named tensors = tensors_of(arrays);
        const nb::gil_scoped_release release;
        dp::write_safetensors(path.string(), tensors, metadata);
      },
      "path"_a, "tensors"_a, "metadata"_a = std::map<std::string, std::string>{{"format", "pt"}},
      "Writes arrays to a safetensors file, which PyTorch reads.");
  m.def(
      "weights_sha256", [](const nb::dict& arrays) { return dp::weights_sha256(tensors_of(arrays)); }, "state_dict"_a,
      "SHA-256 over name, type, shape and bytes of each tensor.");
}

}  // namespace dp_python
