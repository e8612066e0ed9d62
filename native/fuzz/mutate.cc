#include "mutate.h"

#include <algorithm>

#include "reader/reader.h"
#include "reader/rules.h"
#include "test/editable_bundle.h"

namespace {

size_t below(Rng& rng, size_t count) { return rng() % count; }

template <class T>
const T& pick(Rng& rng, const std::vector<T>& choices) {
  return choices[below(rng, choices.size())];
}

const std::vector<std::string> kTokens = {
    "0", "1", "2", "3", "-1", "7", "8", "16", "32", "127", "128", "255", "256", "4096", "4097", "65535",
    "65536", "65537", "2147483647", "2147483648", "16777216", "1099511627776", "4611686018427387904",
    "9223372036854775807", "9223372036854775808", "1e30", "-0.5", "1.5", "0.0", "1e308", "1e999", "1e-999",
    "true", "false", "null", "NaN", "\"\"", "\"input\"", "\"synapse\"", "\"pool\"", "\"merge\"",
    "\"concat\"", "\"slice\"", "\"roll\"", "\"rearrange\"", "\"upsample\"", "\"zero_pad\"", "\"offset\"", "\"multiply\"",
    "\"matmul\"", "\"nearest\"", "\"zeros\"", "\"repeat\"", "\"shortcut\"", "\"integer_neuron\"", "\"readout\"",
    "\"none\"", "\"sum\"", "\"max\"",
    "\"event\"", "\"level\"", "\"zero\"", "\"F32\"", "\"I8\"", "\"I16\"", "\"I32\"", "\"\\ud800\"",
    "\"\\u0000\"", "\"a.b\"", "[]", "{}", "[1]", "[1, 1]", "[0, 0]", "[2, 2]", "[65536, 65536]", "[1, 1, 1]",
    "[[[[[[]]]]]]"};

const std::vector<char> kBytes = {'{', '}', '[', ']',  '"',  ',',    ':', '0', '9',
                                  'e', '.', '-', '\\', '\0', '\xff', ' ', 't', 'n'};

struct Span {
  size_t first, last;
};

// Where the values of a text lie, keys among them. Works on what is nearly JSON too.
std::vector<Span> find_values(const std::string& text) {
  std::vector<Span> found;
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '{' || c == '[') {
      open.push_back(i++);
    } else if (c == '}' || c == ']') {
      if (!open.empty()) found.push_back({open.back(), i + 1}), open.pop_back();
      ++i;
    } else if (c == '"') {
      size_t end = i + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      found.push_back({i, end});
      i = end;
    } else if (c == ',' || c == ':' || c == ' ') {
      ++i;
    } else {
      size_t end = i;
      while (end < text.size() && !std::strchr(",:{}[]\" ", text[end])) ++end;
      end = std::max(end, i + 1);
      found.push_back({i, end});
      i = end;
    }
  }
  return found;
}

std::string cut(const std::string& text, Span span) {
  return text.substr(span.first, span.last - span.first);
}

void put(std::string& text, Span span, const std::string& value) {
  text.replace(span.first, span.last - span.first, value);
}

// Another number near by, or a value of the same kind from elsewhere.
std::string similar(const std::string& text, const std::vector<Span>& values, Span span, Rng& rng) {
  const std::string value = cut(text, span);
  const bool is_number = !value.empty() && value.size() < 10 &&
                         value.find_first_not_of("-0123456789") == value.npos && value != "-";
  if (is_number && below(rng, 2)) {
    const long number = std::stol(value);
    return std::to_string(
        pick(rng, std::vector<long>{number + 1, number - 1, 2 * number, -number, number / 2, number * 255}));
  }
  for (int tries = 0; tries < 50; ++tries) {
    const std::string other = cut(text, pick(rng, values));
    if (!other.empty() && other != value &&
        (other[0] == value[0] || (is_number && other[0] >= '0' && other[0] <= '9')))
      return other;
  }
  return pick(rng, kTokens);
}

// An element of a list, or a key with its value, and the comma beside it.
Span with_comma(const std::string& text, const std::vector<Span>& values, Span span) {
  if (text[span.last] == ':')
    for (const Span value : values)
      if (value.first == text.find_first_not_of(": ", span.last)) span.last = value.last;
  if (text.compare(span.last, 2, ", ") == 0) return {span.first, span.last + 2};
  if (span.first >= 2 && text.compare(span.first - 2, 2, ", ") == 0) return {span.first - 2, span.last};
  return span;
}

void edit(std::string& text, Rng& rng) {
  const std::vector<Span> all = find_values(text);
  std::vector<Span> values;  // without keys, or nearly all mutants would be no JSON
  for (const Span span : all)
    if (text[span.last] != ':') values.push_back(span);
  if (values.empty()) return;
  const Span span = pick(rng, values);
  switch (below(rng, 16)) {
    case 0: put(text, span, pick(rng, kTokens)); break;
    case 1: put(text, span, cut(text, pick(rng, values))); break;
    case 2: put(text, span, cut(text, span) + ", " + cut(text, span)); break;
    case 3: put(text, with_comma(text, all, pick(rng, all)), ""); break;
    case 4: text[below(rng, text.size())] = pick(rng, kBytes); break;
    default: put(text, span, similar(text, values, span, rng));
  }
}

void edit_numbers(std::string& numbers, Rng& rng) {
  if (numbers.empty()) return;
  const size_t count = 1 + below(rng, 4);
  for (size_t i = 0; i < count; ++i)
    numbers[below(rng, numbers.size())] =
        static_cast<char>(pick(rng, std::vector<uint64_t>{0, 1, 7, 0x7f, 0x80, 0x81, 0xff, rng()}));
}

// Write the bounds that hold into the manifest, so that a changed network can be accepted.
void write_true_bounds(EditableBundle& draft) {
  std::vector<lbq::Bound> bounds;
  try {
    const std::string file = draft.pack();
    bounds = lbq::prove(lbq::read_rules(lbq::copy_bundle(file.data(), file.size())).network);
  } catch (const lbq::ReadError&) {
    return;
  }
  const std::string key = "\"bound\": {";
  size_t at = 0;
  for (const lbq::Bound& bound : bounds) {
    if (bound.bits == 0) continue;
    at = draft.manifest.find(key, at);
    const size_t end = at == draft.manifest.npos ? at : draft.manifest.find('}', at);
    if (end == draft.manifest.npos) return;
    const std::string text = key + "\"low\": " + std::to_string(bound.low) +
                              ", \"high\": " + std::to_string(bound.high) +
                              ", \"bits\": " + std::to_string(bound.bits);
    draft.manifest.replace(at, end - at, text);
    at += text.size();
  }
}

// Bytes without a right digest.
std::string damage(std::string file, Rng& rng) {
  const size_t at = below(rng, file.size());
  const size_t how = below(rng, 3);
  if (how == 0) file[at] ^= static_cast<char>(1 << below(rng, 8));
  if (how == 1) file.resize(at);
  if (how == 2) file.insert(at, file.substr(below(rng, file.size()), below(rng, 64)));
  return file;
}

}  // namespace

std::string mutate(const std::vector<std::string>& files, Rng& rng) {
  const std::string& file = pick(rng, files);
  if (below(rng, 20) == 0) return damage(file, rng);
  EditableBundle draft(file);
  const size_t how = below(rng, 8);
  const size_t edits = 1 + below(rng, 3) * below(rng, 2);
  for (size_t i = 0; i < edits; ++i) {
    if (how < 4) edit(draft.manifest, rng);
    if (how == 4) edit(draft.table, rng);
    if (how >= 5) edit_numbers(draft.numbers, rng);
    if (how == 7) edit(draft.manifest, rng);
  }
  if (below(rng, 4) != 0) write_true_bounds(draft);
  return draft.pack();
}
