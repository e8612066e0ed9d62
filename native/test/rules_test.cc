// Every rule has a bundle that breaks it, one change away from a sound one and sealed again, and that bundle
// is refused by the rule's own code.
#include <functional>
#include <set>

#include "editable_bundle.h"
#include "reader_tester.h"

namespace {

using Bundle = EditableBundle;
using Edit = std::function<void(Bundle&)>;

// Changes of the first `from`: in the manifest, in the manifest behind a node's path, in the table of tensors.
Edit edit(std::string from, std::string to) {
  return [=](Bundle& d) { d.edit(from, to); };
}
Edit edit(std::string path, std::string from, std::string to) {
  return [=](Bundle& d) { d.edit(path, from, to); };
}
Edit edit_table(std::string from, std::string to, std::string after = "") {
  return [=](Bundle& d) { Bundle::replace(d.table, from, to, after); };
}
template <class T>
Edit set(std::string tensor, int64_t index, T value) {
  return [=](Bundle& d) { d.set<T>(tensor, index, value); };
}

struct Case {
  lbq_model_status status;
  const char* name;
  Edit edit;
};

const Case kCases[] = {
    {LBQ_RULE_KEYS, "unknown key", edit("\"timesteps\"", "\"_target_\": 1, \"timesteps\"")},
    {LBQ_RULE_KEYS, "missing setting", edit("pool", "\"stride\": [1, 1], ", "")},
    {LBQ_RULE_KEYS, "unknown setting", edit("fc", "\"groups\"", "\"extra\": 1, \"groups\"")},
    {LBQ_RULE_JSON, "no JSON", [](Bundle& d) { d.manifest = "{"; }},
    {LBQ_RULE_JSON, "key twice", [](Bundle& d) { d.manifest = "{\"a\": 1, \"\\u0061\": 2}"; }},
    {LBQ_RULE_JSON, "not a number", edit("0.25", "NaN")},
    {LBQ_RULE_JSON, "beyond floats", edit("0.25", "1e999")},
    {LBQ_RULE_JSON, "nested without end", [](Bundle& d) { d.manifest = std::string(100000, '['); }},
    {LBQ_RULE_JSON, "not UTF-8", edit("tiny", "\xff")},
    {LBQ_RULE_JSON, "a table of nothing", [](Bundle& d) { d.table = "nul"; }},
    {LBQ_RULE_VALUE, "scale of zero", edit("0.25", "0.0")},
    {LBQ_RULE_VALUE, "whole scale", edit("0.25", "1")},
    {LBQ_RULE_VALUE, "true for a number", edit("fc", "\"groups\": 1", "\"groups\": true")},
    {LBQ_RULE_VALUE, "unknown bits", edit("fc", "\"bits\": 16", "\"bits\": 5")},
    {LBQ_RULE_VALUE, "list for a manifest", [](Bundle& d) { d.manifest = "[]"; }},
    {LBQ_RULE_VALUE, "too wide for 64 bits", edit("\"timesteps\": 2", "\"timesteps\": 99999999999999999999")},
    {LBQ_RULE_VALUE, "bound of a pool", edit("pool", "\"bound\": null", "\"bound\": {}")},
    {LBQ_RULE_VALUE, "more bits than needed", edit("block.conv", "\"bits\": 16}", "\"bits\": 32}")},
    {LBQ_RULE_COUNT, "no nodes",
     [](Bundle& d) {
       d.manifest.erase(d.manifest.find("[{"));
       d.manifest += "[]}";
     }},
    {LBQ_RULE_COUNT, "too many tensors",
     [](Bundle& d) {
       d.table = "{\"a\": 0";
       for (int i = 0; i < 1 << 14; ++i) d.table += ", \"" + std::to_string(i) + "\": 0";
       d.table += "}";
     }},
    {LBQ_RULE_NAME, "long name", edit("\"fc\"", "\"" + std::string(257, 'x') + "\"")},
    {LBQ_RULE_NAME, "half a character", edit("\"fc\"", "\"\\ud800\"")},
    {LBQ_RULE_NAME, "empty part", edit("\"fc\"", "\"head..fc\"")},
    {LBQ_RULE_NAME, "name twice", edit("\"path\": \"pool\"", "\"path\": \"block.merge\"")},
    {LBQ_RULE_NAME, "name of the input", edit("\"path\": \"stem.conv\"", "\"path\": \"input\"")},
    {LBQ_RULE_KIND, "unknown kind", edit("\"kind\": \"pool\"", "\"kind\": \"os.system\"")},
    {LBQ_RULE_KIND, "neuron of real numbers", edit("\"integer_neuron\"", "\"level_neuron\"")},
    {LBQ_RULE_ORDER, "circle", edit("stem.repeat", "[\"stem.conv\"]", "[\"block.merge\"]")},
    {LBQ_RULE_ORDER, "reads itself", edit("fc", "[\"pool\"]", "[\"fc\"]")},
    {LBQ_RULE_UNREAD, "dead end", edit("block.merge", "\"block.conv\", ", "")},
    {LBQ_RULE_UNREAD, "no readout",
     [](Bundle& d) {
       d.manifest.erase(d.manifest.find(", {\"path\": \"readout\""));
       d.manifest += "]}";
     }},
    {LBQ_RULE_TIMESTEPS, "no timestep", edit("\"timesteps\": 2", "\"timesteps\": 0")},
    {LBQ_RULE_TIMESTEPS, "too many timesteps", edit("\"timesteps\": 2", "\"timesteps\": 4097")},
    {LBQ_RULE_TIMESTEPS, "repeats more often", edit("stem.repeat", "\"timesteps\": 2", "\"timesteps\": 3")},
    {LBQ_RULE_MAX_LEVEL, "too many levels", edit("stem.neuron", "[3, 4]", "[256, 4]")},
    {LBQ_RULE_CONTIGUOUS, "hole",
     [](Bundle& d) {
       Bundle::replace(d.table, "[660,732]", "[661,733]");
       d.numbers += "x";
     }},
    {LBQ_RULE_CONTIGUOUS, "overlap", edit_table("[16,64]", "[508,556]")},
    {LBQ_RULE_CONTIGUOUS, "unused bytes", [](Bundle& d) { d.numbers += "12345678"; }},
    {LBQ_RULE_CONTIGUOUS, "shape larger than its bytes",
     edit_table("[3,4]", "[1099511627776,1099511627776]", "fc.weight")},
    {LBQ_RULE_CONTIGUOUS, "far away", edit_table("[660,732]", "[4611686018427387832,4611686018427387904]")},
    {LBQ_RULE_TENSORS, "unused tensor",
     [](Bundle& d) {
       d.table.back() = ',';
       d.table += "\"extra\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[732,740]}}";
       d.numbers += "12345678";
     }},
    {LBQ_RULE_TENSORS, "tensor left out",
     [](Bundle& d) {
       d.edit("fc", "\"weight\": {\"dtype\": \"I16\", \"shape\": [3, 4], \"offset\": ",
              "\"weight\": null, \"x\": {\"a\": ");
       d.edit("fc", ", \"x\": {\"a\": " + std::to_string(8 + d.first_size + d.place("fc.weight")) + "}", "");
     }},
    {LBQ_RULE_TENSORS, "another place",
     [](Bundle& d) {
       d.edit("stem.neuron", "\"shape\": [4], \"offset\": " + std::to_string(8 + d.first_size + 492),
              "\"shape\": [4], \"offset\": " + std::to_string(8 + d.first_size + 0));
     }},
    {LBQ_RULE_DTYPE, "wide weights with few bits", edit("fc", "\"bits\": 16", "\"bits\": 4")},
    {LBQ_RULE_DTYPE, "no bits", edit("fc", "\"bits\": 16", "\"bits\": null")},
    {LBQ_RULE_DTYPE, "real weights among integers", edit("fc", "\"I16\"", "\"F32\"")},
    {LBQ_RULE_SHAPE, "channels that do not fit", edit("[2, 5, 5]", "[3, 5, 5]")},
    {LBQ_RULE_SHAPE, "window wider than the image", edit("pool", "\"kernel\": [5, 5]", "\"kernel\": [6, 5]")},
    {LBQ_RULE_SHAPE, "bias of another shape", edit("fc", "\"shape\": [3]", "\"shape\": [4]")},
    {LBQ_RULE_SHAPE, "linear layer with a stride", edit("fc", "\"stride\": [1, 1]", "\"stride\": [2, 2]")},
    {LBQ_RULE_SHAPE, "pool with too much padding", edit("pool", "\"padding\": [0, 0]", "\"padding\": [3, 3]")},
    {LBQ_RULE_SHAPE, "branches of two sizes", edit("block.conv", "\"padding\": [1, 1]", "\"padding\": [0, 0]")},
    {LBQ_RULE_SIZE, "image of gigabytes", edit("[2, 5, 5]", "[2, 4096, 4096]")},
    {LBQ_RULE_SIZE, "image beyond all integers", edit("[2, 5, 5]", "[1099511627776, 1099511627776, 1099511627776]")},
    {LBQ_RULE_SIZE, "padding of gigabytes",
     [](Bundle& d) {
       d.edit("\"padding\": [1, 1]", "\"padding\": [4096, 4096]");
       d.edit("[4, 5, 5]", "[4]");
     }},
    {LBQ_RULE_SIGNAL, "merged levels", edit("block.merge", "\"block.shortcut\"", "\"stem.neuron\"")},
    {LBQ_RULE_SIGNAL, "still where time passes", edit("fc", "\"has_time\": true", "\"has_time\": false")},
    {LBQ_RULE_SIGNAL, "mean of integers", edit("readout", "\"sum\"", "\"mean\"")},
    {LBQ_RULE_SIGNAL, "neuron without time", edit("stem.neuron", "[\"stem.repeat\"]", "[\"stem.conv\"]")},
    {LBQ_RULE_MAX_INPUT, "more levels than it says", edit("fc", "\"max_input\": 75", "\"max_input\": 74")},
    {LBQ_RULE_MAX_INPUT, "levels without a limit", edit("fc", "\"max_input\": 75", "\"max_input\": null")},
    {LBQ_RULE_BITS, "eight in four bits", set<int8_t>("block.conv.weight", 0, 8)},
    {LBQ_RULE_BITS, "lowest byte", set<int8_t>("stem.conv.weight", 71, -128)},
    {LBQ_RULE_BITS, "lowest shortcut", set<int16_t>("block.shortcut.weight", 3, -32768)},
    {LBQ_RULE_THRESHOLDS, "falling thresholds", set<int32_t>("stem.neuron.thresholds", 11, 999)},
    {LBQ_RULE_THRESHOLDS, "threshold of zero", set<int32_t>("stem.neuron.thresholds", 3, 0)},
    {LBQ_RULE_DECAY, "growing carry", edit("\"multiplier\": 3", "\"multiplier\": 5")},
    {LBQ_RULE_RESET, "negative reset", set<int32_t>("stem.neuron.reset_amount", 2, -1)},
    {LBQ_RULE_RESET, "late reset of many levels",
     edit("\"resets_after_decay\": false", "\"resets_after_decay\": true")},
    {LBQ_MODEL_REAL_NUMBERS, "real numbers", edit("0.25", "null")},
    {LBQ_MODEL_BOUND, "a bound too high", edit("block.conv", "\"high\": 93", "\"high\": 94")},
    {LBQ_MODEL_BOUND, "a bound too low", edit("block.conv", "\"low\": -117", "\"low\": -116")},
    {LBQ_MODEL_BOUND, "a bound that no integer has",
     edit("block.conv", "\"high\": 93", "\"high\": 9223372036854775807")},
    {LBQ_MODEL_BOUND, "could overflow", set<int32_t>("stem.conv.bias", 7, INT32_MAX)},
    {LBQ_MODEL_BOUND, "larger weights than were proven",
     [](Bundle& d) { d.numbers.replace(d.place("stem.conv.weight"), 72, 72, 127); }},
};

lbq_model_status open_status(const std::string& path, const char* sha256) {
  lbq_model* model = nullptr;
  const lbq_model_status status = lbq_model_open(path.c_str(), sha256, &model, nullptr);
  lbq_model_free(model);
  return status;
}

// What no sealed draft can break.
void test_containers(const std::string& good, Report& report) {
  const EditableBundle draft(good);
  const auto refused = [&](const std::string& file, lbq_model_status expected, const char* name) {
    report(status_of(file) == expected, name);
  };
  refused("hello", LBQ_RULE_MAGIC, "text is no bundle");
  refused(good.substr(0, 5), LBQ_RULE_MAGIC, "half a magic is none");
  refused(pack_bundle(draft.manifest, draft.payload(), 3), LBQ_RULE_VERSION, "version from the future");
  refused(pack_bundle("{}", "", 2, 1), LBQ_RULE_RESERVED, "reserved bytes used");
  refused(good.substr(0, good.size() - 1), LBQ_RULE_LENGTH, "cut");
  refused(good + "x", LBQ_RULE_LENGTH, "extended");
  refused(good.substr(0, 40), LBQ_RULE_LENGTH, "cut in the header");
  refused(pack_bundle(std::string((1 << 20) + 1, ' '), ""), LBQ_RULE_MANIFEST_SIZE, "manifest too long");
  refused(pack_bundle(draft.manifest, "\1"), LBQ_RULE_TABLE_SIZE, "payload shorter than a length");
  refused(pack_bundle(draft.manifest, std::string(7, 0) + "\1{}"), LBQ_RULE_TABLE_SIZE,
          "table longer than the payload");
  std::string lies = good;
  std::memset(&lies[16], 0x7f, 8);
  refused(lies, LBQ_RULE_LENGTH, "a length of exabytes");
  for (size_t i = 0; i < good.size(); i += i < 64 ? 1 : 7) {
    std::string flipped = good;
    flipped[i] ^= static_cast<char>(1 << i % 8);
    report(status_of(flipped) != LBQ_MODEL_OK, "a flipped bit at " + std::to_string(i));
  }
  report(open_status(corpus("."), nullptr) == LBQ_RULE_FILE, "a folder is no bundle");
  report(open_status("/dev/null", nullptr) == LBQ_RULE_FILE, "a device is no bundle");
  report(open_status(corpus("nobody.lbq"), nullptr) == LBQ_MODEL_READ_FAILED, "a missing file");
  const std::string path = corpus("tiny-event.lbq");
  report(open_status(path, std::string(64, '0').c_str()) == LBQ_RULE_KNOWN_DIGEST,
         "another file than the known one");
  report(open_status(path, hex_digest(good).c_str()) == LBQ_MODEL_OK, "the known file");
}

}  // namespace

void test_rules(Report& report) {
  const std::string good = read_whole(corpus("tiny-event.lbq"));
  report(status_of(EditableBundle(good).pack()) == LBQ_MODEL_OK, "the draft is sound before it is broken");
  test_containers(good, report);
  std::set<int> broken;
  for (const Case& c : kCases) {
    EditableBundle draft(good);
    c.edit(draft);
    std::string message;
    const lbq_model_status status = status_of(draft.pack(), &message);
    report(status == c.status, std::string(c.name) + ": " + lbq_model_status_name(status) + ": " + message);
    broken.insert(status);
  }
  for (int rule = LBQ_RULE_JSON; rule <= LBQ_RULE_RESET; ++rule)
    report(broken.count(rule) == 1 || rule == LBQ_RULE_FINITE,
           std::string("no case breaks ") + lbq_model_status_name(static_cast<lbq_model_status>(rule)));
  report(lbq_model_status_name(static_cast<lbq_model_status>(9)) == nullptr,
         "a number that is no status has no name");
}
