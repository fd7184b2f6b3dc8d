// Trainer, its callbacks and reports.
#include <dp/trainer.h>
#include <atomic>
#include <csignal>

#include "data.h"
#include "options.h"
#include "parallel.h"

namespace dp_python {
namespace {

class PythonTrainer : public ClosedAtExit, public std::enable_shared_from_this<PythonTrainer> {
 public:
  PythonTrainer(const dp::Model& model, const dp::DatasetPair& data, const nb::dict& arguments)
      : thread_(std::make_shared<ComputeThread>()), options_(options_from(OptionsOf::trainer, arguments, thread_)) {
    options_.stop = &stop_;
    options_.finish = &finish_;
    options_.parallel.stop = &stop_;
    options_.program = "Python package dp " DP_VERSION;
    trainer_ = make_on(thread_, [&] { return new dp::Trainer(model, data, options_); });
  }

  ~PythonTrainer() override { PythonTrainer::close(); }
  void close() override { trainer_.reset(); }

  dp::RunSummary run(const dp::TrainerCallbacks& callbacks) {
    return watched([&] { return trainer_->run(callbacks); });
  }
  dp::RunSummary evaluate(const dp::TrainerCallbacks& callbacks) {
    return watched([&] { return trainer_->evaluate(callbacks); });
  }
  std::shared_ptr<Net> net() {
    if (!trainer_) refuse("the trainer is closed: the interpreter ends");
    return std::make_shared<Net>(thread_, std::shared_ptr<dp::DataParallel>(shared_from_this(), &trainer_->net()));
  }
  void stop() { stop_.store(SIGINT); }
  // A function of run() was interrupted by Ctrl-C. The run ends as if Ctrl-C had come between two functions.
  void interrupt(std::exception_ptr raised) {
    raised_ = std::move(raised);
    stop();
  }
  void finish() { finish_.store(1); }
  const std::optional<dp::RunSummary>& summary() const { return summary_; }
  const dp::TrainerOptions& options() const { return options_; }
  const std::shared_ptr<ComputeThread>& thread() const { return thread_; }

 private:
  template <typename Work>
  dp::RunSummary watched(const Work& work) {
    if (!trainer_) refuse("the trainer is closed: the interpreter ends");
    summary_.reset();
    struct Reset {  // the network may be used afterwards
      std::atomic<int>& stop;
      ~Reset() { stop.store(0); }
    } const reset{stop_};
    thread_->run([&] { summary_ = work(); }, &stop_);
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
    return *summary_;
  }

  std::shared_ptr<ComputeThread> thread_;
  std::atomic<int> stop_{0}, finish_{0};
  std::exception_ptr raised_{};
  dp::TrainerOptions options_;
  std::optional<dp::RunSummary> summary_;
  std::shared_ptr<dp::Trainer> trainer_;
};

// A callback that calls the Python function `name` on the thread that waits in run(). `argument` turns the report into
// the function's argument. Empty without such a function. The caller of run() keeps the functions alive.
template <typename... Reports, typename Argument>
std::function<void(Reports...)> callback(const nb::dict& functions, const char* name, PythonTrainer& trainer,
                                         const Argument& argument) {
  if (!functions.contains(name)) return {};
  const nb::handle function = functions[name];
  if (function.is_none()) return {};
  return [function, &trainer, argument](Reports... reports) {
    trainer.thread()->call_back([&] {
      try {
        function(argument(reports...));
      } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_KeyboardInterrupt)) throw;
        trainer.interrupt(std::current_exception());
      }
    });
  };
}

dp::TrainerCallbacks callbacks_of(const nb::dict& functions, PythonTrainer& trainer) {
  const auto report = []<typename Report>(const Report& each) { return nb::cast(each); };
  const auto net = [&trainer](const dp::DataParallel&, const dp::TrainerOptions&) { return trainer.net(); };
  return {
      .on_start = callback<const dp::DataParallel&, const dp::TrainerOptions&>(functions, "on_start", trainer, net),
      .on_step = callback<const dp::StepReport&>(functions, "on_step", trainer, report),
      .on_eval = callback<const dp::EvalReport&>(functions, "on_eval", trainer, report),
      .on_epoch = callback<const dp::EpochReport&>(functions, "on_epoch", trainer, report),
      .on_work = callback<const dp::WorkReport&>(functions, "on_work", trainer, report),
      .on_checkpoint = callback<const std::string&>(functions, "on_checkpoint", trainer, report),
      .on_message = callback<const std::string&>(functions, "on_message", trainer, report),
  };
}

nb::typed<nb::dict, nb::str, double> metrics_of(const std::vector<dp::Metric>& metrics) {
  nb::typed<nb::dict, nb::str, double> values;
  for (const dp::Metric& metric : metrics) values[metric.name.c_str()] = metric.value;
  return values;
}

void bind_reports(nb::module_& m) {
  nb::class_<dp::StepReport>(m, "StepReport", "Progress within an epoch.")
      .def_ro("epoch", &dp::StepReport::epoch, "Number of the epoch, from 0.")
      .def_ro("batch", &dp::StepReport::batch, "Number of the batch in its epoch, from 0.")
      .def_ro("batches", &dp::StepReport::batches, "Batches of an epoch.")
      .def_ro("step", &dp::StepReport::step, "Optimizer steps so far.")
      .def_ro("lr", &dp::StepReport::lr, "Learning rate.")
      .def_ro("images_per_second", &dp::StepReport::images_per_second, "Since the last report.")
      .def_ro("loading_share", &dp::StepReport::loading_share,
              "Part of the time that was spent waiting for data, 0 to 1.")
      .def_ro("eta_seconds", &dp::StepReport::eta_seconds, "Seconds to the end of the epoch.")
      .def_ro("recent", &dp::StepReport::recent, "Stats since the last report.")
      .def_ro("epoch_so_far", &dp::StepReport::epoch_so_far, "Stats of the epoch.");
  nb::class_<dp::EvalReport>(m, "EvalReport", "An evaluation.")
      .def_ro("epoch", &dp::EvalReport::epoch, "Number of the epoch, from 0.")
      .def_ro("step", &dp::EvalReport::step, "Optimizer steps so far.")
      .def_ro("stats", &dp::EvalReport::stats, "Stats of the test set.")
      .def_ro("seconds", &dp::EvalReport::seconds, "Seconds it took.")
      .def_ro("average", &dp::EvalReport::average, "Whether the moving average was evaluated.")
      .def_ro("best", &dp::EvalReport::best, "Whether it is the best evaluation so far.")
      .def_prop_ro(
          "metrics", [](const dp::EvalReport& self) { return metrics_of(self.metrics); }, "Further figures by name.");
  nb::class_<dp::EpochReport>(m, "EpochReport", "The end of an epoch.")
      .def_ro("epoch", &dp::EpochReport::epoch, "Number of the epoch, from 0.")
      .def_ro("step", &dp::EpochReport::step, "Optimizer steps so far.")
      .def_ro("train", &dp::EpochReport::train, "Stats of the training.")
      .def_ro("test", &dp::EpochReport::test, "EvalReport of the weights, or None.")
      .def_ro("average", &dp::EpochReport::average, "EvalReport of their moving average, or None.")
      .def_ro("seconds", &dp::EpochReport::seconds, "Seconds of training.")
      .def_ro("images_per_second", &dp::EpochReport::images_per_second, "In training.")
      .def_ro("lr", &dp::EpochReport::lr, "Learning rate of the last step.");
  nb::class_<dp::WorkReport>(m, "WorkReport", "Work between training steps.")
      .def_ro("what", &dp::WorkReport::what, "Its name.")
      .def_ro("done", &dp::WorkReport::done, "Batches or images.")
      .def_ro("total", &dp::WorkReport::total, "Of so many; 0: unknown.");
}

void bind_summary(nb::module_& m) {
  using Summary = dp::RunSummary;
  nb::class_<Summary>(m, "RunSummary", "The result of a run.")
      .def_ro("model", &Summary::model, "Name of the network.")
      .def_ro("devices", &Summary::devices, "Names of the devices.")
      .def_ro("epochs", &Summary::epochs, "Epochs.")
      .def_ro("steps", &Summary::steps, "Optimizer steps, with those before a resume.")
      .def_ro("skipped_steps", &Summary::skipped_steps, "Steps skipped because of NaN or infinity.")
      .def_ro("seconds_train", &Summary::seconds_train, "Seconds of training.")
      .def_ro("images_per_second", &Summary::images_per_second, "In training.")
      .def_ro("train_loss", &Summary::train_loss, "Mean loss of the last epoch.")
      .def_ro("test_loss", &Summary::test_loss, "Of the last evaluation; NaN: none.")
      .def_ro("top1", &Summary::top1, "Percent; NaN: none.")
      .def_ro("top5", &Summary::top5, "Percent; NaN: none.")
      .def_prop_ro(
          "metrics", [](const Summary& self) { return metrics_of(self.metrics); }, "Further figures by name.")
      .def_ro("weights_sha256", &Summary::weights_sha256, "Digest of the weights.")
      .def_ro("checkpoint", &Summary::checkpoint, "Folder of the last checkpoint, or empty.")
      .def_ro("interrupted", &Summary::interrupted, "Whether the run ended before it was complete.")
      .def_ro("end", &Summary::end, "'complete', 'interrupted', or why it ended early.")
      .def(
          "to_json", [](const Summary& self) { return dp::to_json(self); }, "As summary.json.")
      .def("__repr__", [](const Summary& self) {
        return nb::str("<dp.RunSummary {} steps={} top1={:.2f} end={!r}>")
            .format(self.model, self.steps, self.top1, self.end);
      });
}

}  // namespace

void bind_trainer(nb::module_& m) {
  bind_reports(m);
  bind_summary(m);
  nb::class_<PythonTrainer>(m, "NativeTrainer", "The trainer under dp.Trainer.")
      .def(nb::new_([](const dp::Model& model, const SharedDataset& train, const SharedDataset& test,
                       const nb::dict& arguments) {
             return std::make_shared<PythonTrainer>(model, dp::DatasetPair{train, test}, arguments);
           }),
           "model"_a, "train"_a, "test"_a, "options"_a)
      .def(
          "run", [](PythonTrainer& self, const nb::dict& functions) { return self.run(callbacks_of(functions, self)); },
          "callbacks"_a, "Trains.")
      .def(
          "evaluate",
          [](PythonTrainer& self, const nb::dict& functions) { return self.evaluate(callbacks_of(functions, self)); },
          "callbacks"_a, "Evaluates the test set once.")
      .def("stop", &PythonTrainer::stop, "Ends the run after the current step, and saves.")
      .def("finish", &PythonTrainer::finish, "Ends the run after the current step, with an evaluation.")
      .def_prop_ro("net", &PythonTrainer::net, "The DataParallel.")
      .def_prop_ro("summary", &PythonTrainer::summary, "Of the last run, also after KeyboardInterrupt; None before.");
}

}  // namespace dp_python
