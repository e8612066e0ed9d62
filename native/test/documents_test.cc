// Strict JSON and SHA-256.
#include "reader/json.h"
#include "reader/rules.h"
#include "reader_tester.h"

namespace {

// Whether a text is read; `document` sees what came out.
template <class Use>
bool reads(std::string text, Use use) {
  try {
    const lbq::Document document(&text[0], text.size(), "test");
    use(document.root());
    return true;
  } catch (const lbq::ReadError& error) {
    return error.status != LBQ_RULE_JSON;
  }
}
bool reads(const std::string& text) {
  return reads(text, [](lbq::Value) {});
}

void test_values(Report& report) {
  // The text is read, and `is_right` of its value.
  const auto expect = [&](const char* text, auto is_right) {
    report(reads(text, [&](lbq::Value v) { report(is_right(v), text); }), text);
  };
  const auto integer = [&](const char* text, int64_t expected) {
    expect(text, [=](lbq::Value v) { return v.kind() == lbq::Json::kInteger && v.integer() == expected; });
  };
  integer("0", 0);
  integer("-0", 0);
  integer(" 9223372036854775807\n", INT64_MAX);
  integer("-9223372036854775808", INT64_MIN);
  expect("9223372036854775809", [](lbq::Value v) { return v.kind() == lbq::Json::kHuge; });
  const auto real = [&](const char* text, double expected) {
    expect(text, [=](lbq::Value v) { return v.kind() == lbq::Json::kReal && v.real() == expected; });
  };
  real("0.1", 0.1);
  real("-1E+2", -100);
  real("1e-999", 0);
  real("0.000000000000000000000000000001e31", 10);
  const auto text = [&](const char* json, const std::string& expected) {
    expect(json, [&](lbq::Value v) { return v.text() == expected; });
  };
  text(R"("a\"\\\/\b\f\n\r\t")", "a\"\\/\b\f\n\r\t");
  text(R"("\u00e4\u20ac\ud83d\ude00")", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  text(R"("\ud800")", "\xed\xa0\x80");
  text(R"("\ud800\u0041")", "\xed\xa0\x80\x41");
  expect(R"({"a": [1, {"b": []}, "c"], "d": null})", [](lbq::Value v) {
    const lbq::Value list = v.first().next();
    return v.count() == 2 && list.count() == 3 && list.next().text() == "d" &&
           list.first().next().next().text() == "c";
  });
}

}  // namespace

void test_documents(Report& report) {
  test_values(report);
  const char* const kBroken[] = {
      "", " ", "{", "[", "[1", "[1,", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}",
      "{\"a\":1 \"b\":2}", "1 2", "01", "-", "+1", "1.", ".5", "1e", "0x1", "NaN", "Infinity", "-Infinity",
      "1e999", "-1e999", "nul", "truee", "\"", "\"\\", "\"\\u12\"", "\"\\u12g4\"", "\"\\x\"", "\"\n\"", "]",
      "[}", "{]", "[1}", "\xef\xbb\xbf{}", "{\"a\":1,\"a\":1}", "{\"a\":1,\"b\":2,\"\\u0061\":3}",
      "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\""};
  for (const char* text : kBroken)
    report(!reads(text), std::string("is no strict JSON: ") + text);
  report(reads(std::string(4300, '1')) && !reads(std::string(4301, '1')), "thousands of digits");
  report(reads(std::string(500, '[') + std::string(500, ']')), "nested deeply");
  report(!reads(std::string(501, '[') + std::string(501, ']')), "nested too deeply");
  report(!reads(std::string(1 << 20, '[')), "nested without end");

  report(hex_digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
         "SHA-256 of nothing");
  report(hex_digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
         "SHA-256 of abc");
  report(hex_digest(std::string(1000000, 'a')) ==
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
         "SHA-256 of a million");
  for (size_t size = 0; size < 200; ++size) {  // in pieces as at once
    const std::string bytes(size, 'x');
    lbq::Sha256 pieces;
    for (size_t at = 0; at < size; at += 1 + at % 7)
      pieces.update(&bytes[at], std::min<size_t>(1 + at % 7, size - at));
    char hex[65];
    lbq::to_hex(pieces.finish(), hex);
    report(hex_digest(bytes) == hex, "SHA-256 in pieces of " + std::to_string(size));
  }
}
