// A DataParallel that Python holds.
#pragma once

#include <dp/data_parallel.h>
#include <memory>

#include "compute_thread.h"
#include "convert.h"

namespace dp_python {

class Net : public ClosedAtExit {
 public:
  Net(std::shared_ptr<ComputeThread> thread, std::shared_ptr<dp::DataParallel> net)
      : thread_(std::move(thread)), net_(std::move(net)) {}

  ~Net() override { Net::close(); }
  void close() override;
  dp::DataParallel& operator*() {
    if (!net_) refuse("the DataParallel is closed: the interpreter ends");
    return *net_;
  }
  // The result of `use` on the object's thread.
  template <typename Use>
  auto get(Use&& use) {
    return thread_->get([&] { return use(**this); });
  }
  template <typename Use>
  void run(Use&& use) {
    thread_->run([&] { use(**this); });
  }
  // Keeps a batch until the next call has returned, and the images of forward() until backward() has. With GPUs, which
  // may read it after the call, it is a copy.
  const dp::Batch& keep(dp::Batch batch);
  const dp::Tensor& keep_for_backward(const dp::Tensor& images);

 private:
  bool on_gpus() const;

  std::shared_ptr<ComputeThread> thread_;
  std::shared_ptr<dp::DataParallel> net_;
  dp::Batch batch_, previous_;
  dp::Tensor images_;
};

}  // namespace dp_python
