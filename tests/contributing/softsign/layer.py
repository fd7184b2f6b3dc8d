"""What each step of docs/internals/adding_a_layer.md adds for a toy layer: softsign, x / (1 + |x|)."""

# (step, file, text that occurs once, what replaces it; @ is that text)
INSERTIONS = (
    (1, "engine/include/dp/model.h", "struct Relu {};", "@\nstruct Softsign {};  // x / (1 + |x|)"),
    (1, "engine/include/dp/model.h", "std::variant<Input,", "@ Softsign,"),
    (1, "engine/include/dp/model.h", "Node relu(Node x);", "@\n  Node softsign(Node x);"),
    (1, "apps/python/src/builder.cpp", "void bind_elementwise(nb::class_<Builder>& builder) {", """\
@
  builder.def(
      "softsign", [](Builder& self, Node x) { return (*self).softsign(x); }, "x"_a, "x / (1 + |x|).");"""),
    (1, "engine/base/model.cpp", "ModelBuilder::Node ModelBuilder::relu(Node x) {", """\
ModelBuilder::Node ModelBuilder::softsign(Node x) {
  const Shape in = shape_of(x, "softsign");
  return append("", Softsign{}, {x.index}, in);
}

@"""),
    (1, "engine/checkpoint/model_json.cpp", 'const char* op_of(const Relu&) { return "relu"; }',
     '@\nconst char* op_of(const Softsign&) { return "softsign"; }'),
    (1, "engine/checkpoint/model_json.cpp", "  if (is(Relu())) node = relu(x());",
     "@\n  if (is(Softsign())) node = softsign(x());"),
    (2, "engine/layers/nodes.h", "enum class NodeKind {", "@ softsign,"),
    (2, "engine/layers/nodes.cpp", "  void fill(Node& node, const Dropout& dropout, std::size_t i) {", """\
  void fill(Node& node, const Softsign&, std::size_t i) {
    node.kind = NodeKind::softsign;
    take(node, i, "softsign");
  }
@"""),
    (3, "kernels/elementwise/op.h", "// y = a + b, then max(0, y) if relu.", """\
// y = x / (1 + |x|); may run in place.
struct SoftsignForward {
  static constexpr const char* kName = "softsign_forward";
  DP_ARGS(x, y);
  TensorDesc x;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(SoftsignForward);

// dx = dy times the derivative at x; may run in place on dy. All tensors have x's layout.
struct SoftsignBackward {
  static constexpr const char* kName = "softsign_backward";
  DP_ARGS(dy, x, dx);
  TensorDesc x;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(SoftsignBackward);

@"""),
    (3, "kernels/ops.h", "std::variant<Conv2dForward,", "std::variant<SoftsignForward, SoftsignBackward, Conv2dForward,"),
    (4, "kernels/CMakeLists.txt", "  elementwise/cpu.cpp\n", "@  elementwise/softsign_reference.cpp\n"),
    (5, "kernels/CMakeLists.txt", "  elementwise/cpu_reorder.cpp\n", "  elementwise/cpu_softsign.cpp\n@"),
    (6, "kernels/device/cuda/sources.cmake", "    elementwise/cuda\n", "@    elementwise/cuda_softsign\n"),
    (7, "engine/layers/layers.h", "void forward_dropout(", """\
void forward_softsign(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void backward_softsign(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
@"""),
    (7, "engine/layers/elementwise.cpp", "void forward_dropout(", """\
void forward_softsign(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  set_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(SoftsignForward{result.x.desc}),
           {.x = result.x.where, .y = result.y.where});
}

void backward_softsign(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, "backward", plan.make(SoftsignBackward{dy.value.desc}),
           {.dy = dy.value.where, .x = result.x.where, .dx = to.where});
  plan.gradients.give(node.inputs[0], to, true);
}

@"""),
    (7, "engine/plan/plan.cpp", "    case NodeKind::relu: return forward_relu(", """\
    case NodeKind::softsign: return forward_softsign(plan, node, x, result);
@"""),
    (7, "engine/plan/plan.cpp", "    case NodeKind::add: return backward_add(", """\
    case NodeKind::softsign: return backward_softsign(plan, node, dy, result);
@"""),
    (8, "tests/kernels/CMakeLists.txt", "target_link_libraries(test_reference PRIVATE dp_op_rig)", """\
@
dp_add_test(softsign SOURCES softsign_test.cpp)
target_link_libraries(test_softsign PRIVATE dp_op_rig)"""),
    (8, "tests/cuda/CMakeLists.txt", "target_link_libraries(test_simulated_ops PRIVATE dp_op_rig)", """\
@
dp_add_simulated_test(simulated_softsign dp_simulated TIER all SOURCES ${PROJECT_SOURCE_DIR}/tests/kernels/softsign_test.cpp)
target_link_libraries(test_simulated_softsign PRIVATE dp_op_rig)"""),
)

# (step, file of this folder, the file that the step creates)
NEW_FILES = (
    (4, "reference.cpp", "kernels/elementwise/softsign_reference.cpp"),
    (5, "cpu.cpp", "kernels/elementwise/cpu_softsign.cpp"),
    (6, "cuda.cu", "kernels/elementwise/cuda_softsign.cu"),
    (8, "test.cpp", "tests/kernels/softsign_test.cpp"),
)

# (file, source): the compiler must reject the source if the insertions into the file are left out.
REFUSED = (
    ("engine/checkpoint/model_json.cpp", "engine/checkpoint/model_json.cpp"),
    ("engine/layers/nodes.cpp", "engine/layers/nodes.cpp"),
    ("engine/plan/plan.cpp", "engine/plan/plan.cpp"),
    ("kernels/elementwise/op.h", "kernels/ops.cpp"),
)
TESTS = ("test_softsign", "test_simulated_softsign")
