// The operators of integer networks: one table with their names, settings, tensors, shape rules, bound rules, exact
// kernels and plans. Reader, proof, interpreter and engine use it. src/lbq/graph/operators has the same rules.
#pragma once

#include <string_view>

#include "lbq_model.h"
#include "network.h"

namespace lbq {

constexpr int64_t kMaxLevel = 255;       // of a neuron
constexpr int64_t kMaxValues = 1 << 24;  // output values of a node for one sample and timestep
constexpr int64_t kMaxTimesteps = 4096;

// A node cannot read its inputs, or has an invalid setting. The caller adds the path of the node.
struct GraphError {
  lbq_model_status rule;
  char text[256];
};
void require_rule(bool holds, lbq_model_status rule, const char* format, ...) __attribute__((format(printf, 3, 4)));

// A saturating product of sizes, which are not negative.
int64_t saturating_product(int64_t one, int64_t other);
int64_t saturating_size(const Shape& shape);

// ---- settings ----

// The value of a setting: integers, or a word; neither for null.
struct SettingValue {
  bool is_null = false;
  std::string_view word;
  Factors numbers;
};

// The value of a word.
struct Word {
  const char* text = nullptr;
  int64_t number = 0;

  constexpr Word() = default;
  template <class Number>
  constexpr Word(const char* text, Number number) : text(text), number(static_cast<int64_t>(number)) {}
};

struct Setting {
  enum class Form : uint8_t { kFlag, kNumber, kList, kWord };
  const char* name = nullptr;
  Form form = Form::kFlag;
  void (*store)(Node& node, const SettingValue& value) = nullptr;
  int64_t low = 0, high = 1;  // of every number
  int32_t least = 1, most = 1;  // numbers of a list
  bool is_optional = false;     // may be null
  Word words[4] = {};
};

// Check the range of a setting and store it in the node; throws GraphError.
void store_setting(Node& node, const Setting& setting, const SettingValue& value);

// ---- the overflow proof ----

// Beyond every integer that fits 32 bits. Intervals saturate here and never become smaller again, so the proof fails.
constexpr int64_t kBeyond = int64_t{1} << 62;

struct Interval {
  int64_t low = 0, high = 0;

  Interval operator+(Interval other) const;
  Interval operator*(int64_t factor) const;  // not negative
  Interval operator*(Interval other) const;
  Interval hull(Interval other) const;
  Interval with_zero() const { return hull({0, 0}); }
  bool operator==(Interval other) const { return low == other.low && high == other.high; }
  bool fits() const { return low >= INT32_MIN && high <= INT32_MAX; }
};

// One interval per channel, or one for all.
using Intervals = std::vector<Interval>;
Interval hull_of(const Intervals& intervals);

// An input of a node in the proof.
struct Entering {
  ValueInfo value;
  const Intervals* intervals;
};

// ---- exact kernels ----

// The values of one sample at one instant, in C order.
struct Operand {
  const int64_t* data;
  Shape shape;
};

// ---- the table ----

struct Role {
  const char* name = nullptr;
  Integers Node::*tensor = nullptr;
  int32_t widths = 0;  // allowed bytes per integer, added up: 1, 2, 4
  bool is_optional = false;
};

constexpr int kMaxSettings = 8, kMaxRoles = 2;

class Planner;
struct Stage;
void plan_exact(Planner& planner, Stage& stage);  // exact_stage.cc

struct Operator {
  const char* name;  // in a bundle
  int64_t least_inputs = 1, most_inputs = 1;
  bool has_bound = false;  // whether it computes new integers; otherwise it moves, selects or pools its inputs
  // The output. Fills in the fields that follow from the inputs, none larger than kMaxValues, and from the shapes of
  // the tensors. Throws GraphError.
  ValueInfo (*infer)(Node& node, const std::vector<ValueInfo>& inputs, int64_t timesteps);
  // The hull of all integers that it computes, including partial sums, and the intervals of its output.
  Interval (*bound)(const Node& node, const std::vector<Entering>& inputs, int64_t timesteps, Intervals& gives);
  // How many intervals its bound rule visits; null: one per input and channel.
  int64_t (*visits)(const Node& node, int64_t timesteps) = nullptr;
  // The output for one sample and timestep.
  void (*run)(const Node& node, const std::vector<Operand>& inputs, int64_t* output) = nullptr;
  // For a neuron, instead of `run`: computes the output and updates the carry.
  void (*step)(const Node& node, const int64_t* currents, int64_t* carry, int64_t* levels) = nullptr;
  // Throws GraphError unless the values of its tensors are valid; null: all values are valid.
  void (*check)(const Node& node) = nullptr;

  // In the engine (plan.h): as a separate stage,
  void (*plan)(Planner& planner, Stage& stage) = plan_exact;
  // or as a term of the sum of a stage: adds it, or returns false if only its own stage can compute it.
  bool (*add)(Planner& planner, Stage& stage, int32_t node) = nullptr;
  bool is_view = false;  // readers read its input instead
  bool is_move = false;  // its values are those of its only input in another order, some of them, or zeros

  Setting settings[kMaxSettings] = {};  // the first without a name ends them
  Role roles[kMaxRoles] = {};
};

const Operator& operator_of(Kind kind);
// The operator of this name; null if there is none.
const Operator* find_operator(std::string_view name, Kind& kind);

// The shape rule of a node: fills in the node and returns its output.
ValueInfo infer(Node& node, const std::vector<ValueInfo>& inputs, int64_t timesteps);

// Throw GraphError unless all nodes but the readouts are read, the last node is a readout, and all treat time alike.
void check_outputs(const Network& network);

}  // namespace lbq
