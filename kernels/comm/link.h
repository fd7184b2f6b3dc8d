// A queue that passes tensors from one stage of a pipeline to a neighbouring stage. The sender waits for the receiver
// only if the queue is full.
#pragma once

#include <cstddef>

namespace dp::kernels {

class CaptureTurn;
class Stream;

class Link {
 public:
  static constexpr std::size_t kSlots = 2;  // tensors that can be sent but not yet received

  enum class End { sender, receiver };

  virtual ~Link() = default;
  // Allocates memory for tensors of up to `bytes` bytes. Called by the sender's thread, while no transfer is in
  // progress.
  virtual void reserve(std::size_t bytes) = 0;
  virtual std::size_t held(End end) const = 0;  // bytes of that memory on the device of one end
  // Enqueues a copy of `data` into the queue, after the earlier work of `stream`. When the stream has passed it, the
  // caller may overwrite `data`. The copy waits while the queue is full. Called by the sender's thread.
  virtual void send(const void* data, std::size_t bytes, Stream& stream) = 0;
  // Enqueues a copy of the next tensor to `data`. Later work of `stream` waits until it has been sent. Error(device) if
  // the tensor has another size. Called by the receiver's thread.
  virtual void receive(void* data, std::size_t bytes, Stream& stream) = 0;

  // The next three have the same meaning as in Communicator. Each end's thread sets its own lock.
  virtual bool joins_graphs() const { return false; }
  virtual void take_turns(End, CaptureTurn*) {}
  // Discards the record of earlier transfers, so later ones do not wait for them. Call it while neither end is in a
  // call.
  virtual void reset() {}
};

struct LinkEnd {
  Link* link = nullptr;
  Link::End end = {};
};

}  // namespace dp::kernels
