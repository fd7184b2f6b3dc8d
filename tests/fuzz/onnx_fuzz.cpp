// The libFuzzer entry point of the ONNX reader: every input is a network or refused with Error(data). Half of the
// mutations change nodes, attributes and tensors of a file that can be parsed, the others change bytes.
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "dp/error.h"
#include "engine/onnx/import.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

class Mutation {
 public:
  Mutation(onnx::GraphProto& graph, unsigned seed) : graph_(graph), random_(seed) {}

  void change() {
    if (graph_.node_size() == 0) return;
    onnx::NodeProto& node = *graph_.mutable_node(below(graph_.node_size()));
    const onnx::NodeProto& other = graph_.node(below(graph_.node_size()));
    switch (below(10)) {
      case 0: node.set_op_type(other.op_type()); break;
      case 1:
        if (node.input_size() > 0) node.set_input(below(node.input_size()), some_value());
        break;
      case 2: node.add_input(some_value()); break;
      case 3: graph_.mutable_node()->SwapElements(below(graph_.node_size()), below(graph_.node_size())); break;
      case 4: *node.mutable_attribute() = other.attribute(); break;
      case 5:
        if (node.attribute_size() > 0) change(*node.mutable_attribute(below(node.attribute_size())));
        break;
      case 6:
        if (graph_.initializer_size() > 0) change(*graph_.mutable_initializer(below(graph_.initializer_size())));
        break;
      case 7: graph_.mutable_output(0)->set_name(some_value()); break;
      case 8:
        if (node.input_size() > 0) node.mutable_input()->RemoveLast();
        break;
      default:
        for (auto& dim :
             *graph_.mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim())
          if (below(3) == 0) dim.set_dim_value(some_number());
    }
  }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(std::max(count, 1))); }
  std::int64_t some_number() {
    const std::int64_t numbers[] = {-1,        0,        1, 2, 3, 4, 5, 8, 13, 64, 1 << 16, std::int64_t{1} << 33,
                                    INT64_MAX, INT64_MIN};
    return numbers[below(14)];
  }
  std::string some_value() {
    if (below(2) == 0 && graph_.initializer_size() > 0)
      return graph_.initializer(below(graph_.initializer_size())).name();
    const onnx::NodeProto& node = graph_.node(below(graph_.node_size()));
    return node.output_size() > 0 ? node.output(0) : std::string();
  }
  void change(onnx::AttributeProto& attribute) {
    if (attribute.ints_size() > 0)
      attribute.set_ints(below(attribute.ints_size()), some_number());
    else if (attribute.has_t())
      change(*attribute.mutable_t());
    else
      attribute.set_i(some_number()), attribute.set_f(static_cast<float>(some_number()));
  }
  void change(onnx::TensorProto& tensor) {
    if (tensor.dims_size() > 0 && below(2) == 0) {
      tensor.set_dims(below(tensor.dims_size()), some_number());
    } else if (tensor.dims_size() > 1 && below(2) == 0) {  // of as many elements
      std::swap(*tensor.mutable_dims()->begin(), *tensor.mutable_dims()->rbegin());
    } else if (tensor.data_type() == onnx::TensorProto::INT64 && tensor.raw_data().size() >= 8) {
      const std::int64_t number = some_number();
      tensor.mutable_raw_data()->replace(0, 8, reinterpret_cast<const char*>(&number), 8);
    } else {
      tensor.set_data_type(below(17));
    }
  }

  onnx::GraphProto& graph_;
  std::mt19937 random_;
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  onnx::ModelProto model;
  if (seed % 2 == 0 || !model.ParseFromArray(data, static_cast<int>(size)) || model.graph().input_size() == 0 ||
      model.graph().output_size() == 0)
    return LLVMFuzzerMutate(data, size, most);
  Mutation mutation(*model.mutable_graph(), seed);
  for (unsigned i = 0; i <= seed / 2 % 3; ++i) mutation.change();
  const std::string bytes = model.SerializeAsString();
  if (bytes.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(bytes.begin(), bytes.end(), data);
  return bytes.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> metadata;
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const dp::OnnxImport imported = dp::onnx_import_bytes(bytes, metadata);
    std::size_t weights = 0;
    for (const auto& [name, tensor] : imported.network.weights) weights += tensor.bytes();
    const dp::Model& model = imported.network.model;
    if (weights > 4 * ((std::size_t{1} << 22) + 4 * size)) std::abort();
    if (model.parameters().size() + model.buffers().size() != imported.network.weights.size()) std::abort();
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data) std::abort();
  }
  return 0;
}
