// DataParallel, and the losses that the host computes.
#include "parallel.h"

#include <dp/default_devices.h>
#include <dp/loss.h>
#include <dp/memory.h>
#include <dp/trained_model.h>
#include <algorithm>

#include "options.h"

namespace dp_python {

void Net::close() {
  net_.reset();
  batch_ = previous_ = {};
  images_ = {};
}

bool Net::on_gpus() const { return net_->options().devices.front().kind == dp::DeviceKind::cuda; }

const dp::Batch& Net::keep(dp::Batch batch) {
  if (net_ && on_gpus())
    for (dp::Tensor* tensor : {&batch.images, &batch.labels, &batch.samples, &batch.targets})
      if (!tensor->empty()) *tensor = tensor->clone();
  previous_ = std::exchange(batch_, std::move(batch));
  return batch_;
}

const dp::Tensor& Net::keep_for_backward(const dp::Tensor& images) {
  return images_ = net_ && on_gpus() ? images.clone() : images;
}

namespace {

// Images with labels, or with targets.
dp::Batch batch_of(const Array& images, const Array& wanted) {
  dp::Batch batch;
  batch.images = floats_of(images, "images");
  if (wanted.ndim() == 1)
    batch.labels = labels_of(wanted);
  else
    batch.targets = floats_of(wanted, "targets");
  return batch;
}

std::shared_ptr<Net> make(const dp::Model& model, const nb::object& devices, const nb::kwargs& arguments) {
  const auto thread = std::make_shared<ComputeThread>();
  const dp::DataParallelOptions options = parallel_options(devices, arguments, thread);
  return std::make_shared<Net>(thread, make_on(thread, [&] { return new dp::DataParallel(model, options); }));
}

// PyTorch's load_state_dict: strict refuses tensors that are missing or do not fit.
std::vector<std::string> load(Net& self, const nb::dict& state, bool strict) {
  Named given = tensors_of(state);
  return self.get([&](dp::DataParallel& net) {
    dp::FittedWeights fitted = dp::fit_weights(net.weights(), std::move(given));
    if (strict && !fitted.faults.empty()) {
      std::string faults;
      for (const std::string& fault : fitted.faults) faults += (faults.empty() ? "" : "; ") + fault;
      throw dp::Error(dp::ErrorCode::data, "the state dict does not fit: " + faults);
    }
    net.set_weights(fitted.tensors);
    return strict ? fitted.changes : fitted.faults;
  });
}

nb::dict optimizer_state(Net& self) {
  const dp::OptimizerState state = self.get([](dp::DataParallel& net) { return net.optimizer_state(); });
  nb::dict result;
  result["optimizer"] = state.optimizer;
  result["updates"] = state.updates;
  result["tensors"] = arrays_of(state.tensors);
  return result;
}

void load_optimizer_state(Net& self, const nb::dict& state) {
  const dp::OptimizerState ours{.optimizer = nb::cast<std::string>(state["optimizer"]),
                                .updates = nb::cast<std::int64_t>(state["updates"]),
                                .tensors = tensors_of(nb::cast<nb::dict>(state["tensors"]))};
  self.run([&](dp::DataParallel& net) { net.set_optimizer_state(ours); });
}

void bind_steps(nb::class_<Net>& net) {
  net.def(
      "forward",
      [](Net& self, const Array& images) {
        const dp::Tensor& kept = self.keep_for_backward(floats_of(images, "images"));
        return array_of(self.get([&](dp::DataParallel& own) { return own.forward(kept).clone(); }));
      },
      "images"_a,
      "Training-mode forward of (B, C, H, W). Returns the outputs of the whole batch, gathered on the master and "
      "copied to the host. The images must stay unchanged until backward() has returned.");
  net.def(
      "__call__", [](nb::handle self, nb::handle images) { return self.attr("forward")(images); }, "images"_a,
      "forward().");
  net.def(
      "backward",
      [](Net& self, const Array& grad) {
        const dp::Tensor tensor = floats_of(grad, "grad");
        self.run([&](dp::DataParallel& own) { own.backward(tensor); });
      },
      "grad"_a, "Takes d(loss)/d(outputs) of the last forward(), and reduces the gradients.");
  net.def(
      "step",
      [](Net& self, const dp::Optimizer& optimizer) { self.run([&](dp::DataParallel& own) { own.step(optimizer); }); },
      "optimizer"_a, "Updates the weights on every replica.");
  net.def(
      "predict",
      [](Net& self, const Array& images) {
        const dp::Tensor kept = floats_of(images, "images");
        return array_of(self.get([&](dp::DataParallel& own) { return own.predict(kept).clone(); }));
      },
      "images"_a, "Evaluation-mode forward of (B, C, H, W). Returns the outputs, copied to the host.");
  const auto train = [](Net& self, const dp::Batch& batch, const dp::Optimizer& optimizer) {
    const dp::Batch& kept = self.keep(batch);
    self.run([&](dp::DataParallel& own) { own.train_step(kept, optimizer); });
  };
  net.def("train_step", train, "batch"_a, "optimizer"_a, "One optimizer step on a global batch of a Loader.");
  net.def(
      "train_step",
      [train](Net& self, const Array& images, const Array& labels, const dp::Optimizer& optimizer) {
        train(self, batch_of(images, labels), optimizer);
      },
      "images"_a, "labels"_a, "optimizer"_a,
      "One optimizer step on a global batch: mean loss, its gradient, update, broadcast.\n\nimages: (B, C, H, W) "
      "float32. labels: (B) class numbers, or targets (B, N).");
  const auto evaluate = [](Net& self, const dp::Batch& batch) {
    const dp::Batch& kept = self.keep(batch);
    self.run([&](dp::DataParallel& own) { own.evaluate(kept); });
  };
  net.def("evaluate", evaluate, "batch"_a, "Adds the loss and accuracies of a batch of a Loader to the statistics.");
  net.def(
      "evaluate",
      [evaluate](Net& self, const Array& images, const Array& labels) { evaluate(self, batch_of(images, labels)); },
      "images"_a, "labels"_a, "Adds the loss and accuracies of an evaluation-mode forward to the statistics.");
  net.def(
      "take_stats", [](Net& self) { return self.get([](dp::DataParallel& own) { return own.take_stats(); }); },
      "The totals of train_step() and evaluate() since the last call.");
}

void bind_state(nb::class_<Net>& net) {
  const auto weights = [](Net& self) {
    return arrays_of(self.get([](dp::DataParallel& own) { return own.weights(); }));
  };
  net.def(
      "state_dict", weights,
      "The weights and running statistics, with PyTorch's names and layout, as numpy arrays.\n\nThe engine copies them "
      "once, because replicas store them in another layout or on another device; the arrays share that copy.");
  net.def(
      "load_state_dict", &load, "state_dict"_a, "strict"_a = true,
      "Takes what PyTorch's load_state_dict() takes: arrays of numpy, tensors of torch, float16 and bfloat16 too.\n\n"
      "Returns what was converted; with strict=False, what does not fit and was left out.");
  net.def(
      "gradients", [](Net& self) { return arrays_of(self.get([](dp::DataParallel& own) { return own.gradients(); })); },
      "The reduced gradients of the last backward(), as state_dict().");
  net.def(
      "average_state_dict",
      [](Net& self) { return arrays_of(self.get([](dp::DataParallel& own) { return own.average_weights(); })); },
      "The moving average of the weights, with model_ema.");
  net.def("optimizer_state", &optimizer_state, "The optimizer's name, number of updates and tensors.");
  net.def("load_optimizer_state", &load_optimizer_state, "state"_a, "Takes the result of optimizer_state().");
  net.def(
      "replicas_identical",
      [](Net& self) { return self.get([](dp::DataParallel& own) { return own.replicas_identical(); }); },
      "Compares the replicas' weights bit by bit.");
  net.def_prop_rw(
      "step_count", [](Net& self) { return self.get([](dp::DataParallel& own) { return own.step_count(); }); },
      [](Net& self, std::int64_t steps) { self.run([&](dp::DataParallel& own) { own.set_step_count(steps); }); },
      "Training steps so far. Part of dropout's random key.");
}

void bind_choices(nb::class_<Net>& net) {
  net.def(
      "prepare",
      [](Net& self, const std::vector<std::int64_t>& train, const std::vector<std::int64_t>& eval,
         const std::optional<dp::Optimizer>& optimizer) {
        self.run([&](dp::DataParallel& own) { own.prepare(train, eval, {}, {}, optimizer); });
      },
      "train_batches"_a, "eval_batches"_a = nb::list(), "optimizer"_a = nb::none(),
      "Allocates all memory for these batch sizes, so that no later step allocates.");
  net.def("__len__", [](Net& self) { return (*self).size(); });
  net.def_prop_ro(
      "model", [](Net& self) { return (*self).model(); }, "The network.");
  net.def_prop_ro(
      "devices", [](Net& self) { return self.get([](dp::DataParallel& own) { return own.options().devices; }); },
      "The devices, one for each replica.");
  net.def(
      "describe_plan",
      [](Net& self, std::int64_t batch) {
        return self.get([&](dp::DataParallel& own) { return own.describe_plan(batch); });
      },
      "batch"_a, "Steps, buffers and buckets, as text.");
  net.def(
      "memory_use",
      [](Net& self, int device) {
        return self.get([&](dp::DataParallel& own) { return own.memory_use(device).total(); });
      },
      "device"_a, "Bytes allocated on a device.");
  net.def(
      "communicator", [](Net& self) { return self.get([](dp::DataParallel& own) { return own.communicator(); }); },
      "The communicator between the replicas.");
}

std::pair<double, NumpyArray> loss_of(const dp::Loss& loss) { return {loss.value, array_of(loss.grad)}; }

template <std::size_t kIndex = 0>
dp::OutputLoss loss_named(const std::string& name) {
  if constexpr (kIndex == std::variant_size_v<dp::OutputLoss>)
    refuse("loss '" + name +
           "' does not exist; dp/loss_functions.h has mse, l1, huber, smooth_l1, bce_with_logits, focal "
           "and soft_cross_entropy");
  else
    return name == std::variant_alternative_t<kIndex, dp::OutputLoss>::kName
               ? dp::OutputLoss(std::in_place_index<kIndex>)
               : loss_named<kIndex + 1>(name);
}

void bind_losses(nb::module_& m) {
  m.def(
      "cross_entropy",
      [](const Array& logits, const Array& labels, float label_smoothing) {
        return loss_of(dp::cross_entropy(floats_of(logits, "logits"), labels_of(labels), label_smoothing));
      },
      "logits"_a, "labels"_a, "label_smoothing"_a = 0.0f,
      "As torch.nn.functional.cross_entropy. Returns the mean loss, and its gradient for backward().");
  m.def(
      "output_loss",
      [](const std::string& name, const Array& outputs, const Array& targets) {
        return loss_of(dp::output_loss(loss_named(name), floats_of(outputs, "outputs"), floats_of(targets, "targets")));
      },
      "name"_a, "outputs"_a, "targets"_a,
      "The mean of mse, l1, huber, smooth_l1, bce_with_logits, focal or soft_cross_entropy, and its gradient.");
}

}  // namespace

void bind_parallel(nb::module_& m) {
  nb::class_<dp::Stats>(m, "Stats", "Totals over samples.")
      .def_prop_ro("loss", &dp::Stats::loss, "Mean loss.")
      .def_prop_ro("accuracy1", &dp::Stats::accuracy1,
                   "Percent of samples whose label has the largest output; NaN with targets.")
      .def_prop_ro("accuracy5", &dp::Stats::accuracy5,
                   "Percent of samples whose label is among the five largest outputs.")
      .def_ro("samples", &dp::Stats::samples, "Number of samples.")
      .def_ro("skipped", &dp::Stats::skipped, "Optimizer steps skipped because of NaN or infinity.")
      .def_ro("grad_norm", &dp::Stats::grad_norm,
              "L2 norm of the last gradient; only with clipping, skipping or scaling.")
      .def("__repr__", [](const dp::Stats& self) {
        return nb::str("<dp.Stats loss={:.4g} accuracy1={:.2f} samples={}>")
            .format(self.loss(), self.accuracy1(), self.samples);
      });
  nb::class_<Net> net(
      m, "DataParallel",
      "Data-parallel training of one model on several devices, from one process.\n\nUse it on one thread at a "
      "time. The work runs on threads of its own, without the interpreter lock.");
  net.def(nb::new_(&make), "model"_a, "devices"_a = nb::none(), "options"_a,
          "Makes one replica for each device, all with the same weights.\n\ndevices: 'cpu', 'cuda:0', or the number of "
          "a GPU; ['cpu', 'cpu'] are two replicas. None: every GPU, or else two CPU replicas. options: see "
          "dp.help_options('DataParallel').");
  bind_steps(net);
  bind_state(net);
  bind_choices(net);
  bind_losses(m);
  m.def("default_devices", &dp::default_devices, "Every GPU of this process, or two CPU replicas.");
  m.def(
      "describe_environment", [] { return dp::describe_environment(); },
      "For bug reports: system, processor, devices, drivers, libraries and their versions.");
  m.def(
      "describe_options",
      [](bool of_trainer) { return describe_options(of_trainer ? OptionsOf::trainer : OptionsOf::data_parallel); },
      "of_trainer"_a = true, "The options of a Trainer, or of a DataParallel, a line each.");
  m.def(
      "measure_split",
      [](const dp::Model& model, std::int64_t batch, const nb::object& devices, const nb::kwargs& arguments) {
        const auto thread = std::make_shared<ComputeThread>();
        const dp::DataParallelOptions options = parallel_options(devices, arguments, thread);
        return thread->get([&] { return dp::measure_split(model, options, batch); });
      },
      "model"_a, "batch"_a, "devices"_a = nb::none(), "options"_a,
      "Shares of a batch for devices of different speed, for split=.");
}

}  // namespace dp_python
