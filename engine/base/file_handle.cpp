#include "engine/base/file_handle.h"

#include "engine/base/file_ops.h"

namespace dp {

int FileHandle::close() {
  const int file = std::exchange(file_, -1);
  return file < 0 ? 0 : file_ops().close(file);
}

}  // namespace dp
