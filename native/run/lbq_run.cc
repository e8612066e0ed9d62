// lbq-run: an integer network over any number of inputs, without Python. docs/deploy/lbq-run.md.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "output_file.h"
#include "sample_file.h"

namespace {

const char kUsage[] =
    "lbq-run NET.lbq IN OUT [options]    answer every .npy and .u8 file of folder IN (or file IN) in folder "
    "OUT\n"
    "lbq-run NET.lbq - [options]         answer raw samples on the standard input, as CSV on the standard "
    "output\n"
    "lbq-run --check FILE...             say for every file whether it is a sound bundle, and what it takes\n"
    "\n"
    "  --shard I/N     only every N-th file, from the I-th on (0 <= I < N)\n"
    "  --batch B       samples that are read and answered at once (16)\n"
    "  --format F      csv (default) or npy\n"
    "  --sha256 HEX    of NET.lbq; another file is refused\n"
    "  --threads N     that share a batch (1)\n"
    "  --isa NAME      avx2, avx2vnni, avx512, avx512vnni, amx, neon, scalar or interpreter; else the best one\n"
    "\n"
    "A row holds the class and the logits of every output of the network, one output behind the other.\n"
    "What is answered already is skipped: start it again after a kill, and it goes on.\n";

enum Exit { kDone = 0, kMistake = 1, kUsageError = 2, kBusy = 75 };

struct UsageError {
  std::string text;
};

struct Options {
  std::vector<std::string> places;
  bool only_checks = false;
  int64_t shard = 0, num_shards = 1, batch = 16;
  Format format = Format::kCsv;
  const char* sha256 = nullptr;
  const char* isa = nullptr;
  int32_t threads = 1;
};

struct FreeModel {
  void operator()(lbq_model* model) const { lbq_model_free(model); }
};
using ModelPointer = std::unique_ptr<lbq_model, FreeModel>;

int64_t number(const std::string& text, int64_t low, const std::string& flag) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != 0 || errno != 0 || value < low || value > INT32_MAX)
    throw UsageError{flag + " takes a whole number from " + std::to_string(low) + " on, not " + text};
  return value;
}

void read_shard(const std::string& text, Options& options) {
  const size_t slash = text.find('/');
  if (slash == text.npos) throw UsageError{"--shard takes I/N, such as 0/8, not " + text};
  options.shard = number(text.substr(0, slash), 0, "--shard");
  options.num_shards = number(text.substr(slash + 1), 1, "--shard");
  if (options.shard >= options.num_shards) throw UsageError{"--shard counts from 0: there is no " + text};
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(kDone);
    }
    if (flag == "--check") {
      options.only_checks = true;
    } else if (flag.compare(0, 2, "--") != 0) {
      options.places.push_back(flag);
    } else if (i + 1 == argc) {
      throw UsageError{flag + " is unknown, or lacks its value"};
    } else if (flag == "--shard") {
      read_shard(argv[++i], options);
    } else if (flag == "--batch") {
      options.batch = number(argv[++i], 1, flag);
    } else if (flag == "--sha256") {
      options.sha256 = argv[++i];
    } else if (flag == "--isa") {
      options.isa = argv[++i];
    } else if (flag == "--threads") {
      options.threads = static_cast<int32_t>(number(argv[++i], 1, flag));
    } else if (flag == "--format") {
      const std::string name = argv[++i];
      if (name != "csv" && name != "npy") throw UsageError{"--format is csv or npy, not " + name};
      options.format = name == "csv" ? Format::kCsv : Format::kNpy;
    } else {
      throw UsageError{flag + " is unknown"};
    }
  }
  const size_t count = options.places.size();
  const bool is_stream = count == 2 && options.places[1] == "-";
  if (options.only_checks ? count == 0 : !is_stream && count != 3)
    throw UsageError{"expected NET.lbq IN OUT"};
  return options;
}

std::vector<int64_t> answer(const lbq_model* model, const lbq_model_info& info, const std::vector<uint8_t>& inputs,
                            int64_t count) {
  std::vector<int64_t> logits(count * info.num_logits * (info.gives_sequence ? info.timesteps : 1));
  lbq_error_message message;
  if (lbq_model_run(model, count, inputs.data(), inputs.size(), logits.data(), logits.size(), &message) != LBQ_MODEL_OK)
    throw InputError{message.text};
  return logits;
}

bool is_folder(const std::string& path) {
  struct stat found;
  if (::stat(path.c_str(), &found) != 0) throw InputError{path + ": " + std::strerror(errno)};
  return S_ISDIR(found.st_mode);
}

bool is_same(const std::string& one, const std::string& other) {
  struct stat first, second;
  const bool both = ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0;
  return both && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

std::vector<std::string> list_shards(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = ::opendir(folder.c_str());
  if (open == nullptr) throw InputError{folder + ": " + std::strerror(errno)};
  while (const dirent* entry = ::readdir(open))
    if (is_sample_file(entry->d_name)) names.push_back(entry->d_name);
  ::closedir(open);
  if (names.empty()) throw InputError{folder + " holds no .npy and no .u8 files"};
  std::sort(names.begin(), names.end());
  return names;
}

// The digest stored in a folder; empty for a new folder.
std::string read_owner(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) return "";
  if (descriptor < 0) throw InputError{path + ": " + std::strerror(errno)};
  char text[66];
  const ssize_t size = ::read(descriptor, text, sizeof text);
  ::close(descriptor);
  return size > 0 ? std::string(text, size) : "?";
}

// Answers of two networks must not mix, so the folder stores the digest of its network.
void check_owner(const std::string& folder, const lbq_model_info& info) {
  const std::string ours = std::string(info.digest) + "\n";
  std::string owner;
  while ((owner = read_owner(folder + "/bundle.digest")).empty()) {
    OutputFile file(folder, "bundle.digest");
    const OutputFile::Claim claim = file.claim();
    if (claim == OutputFile::Claim::kBusy) ::usleep(1000);  // another worker is about to write it
    if (claim != OutputFile::Claim::kOurs) continue;
    file.write(ours);
    file.finish();
  }
  if (owner != ours) throw InputError{folder + " holds the answers of another network; take another folder"};
}

OutputFile::Claim answer_shard(const std::string& path, const std::string& name, const std::string& out,
                               const Options& options, const lbq_model* model, const lbq_model_info& info) {
  OutputFile file(out, name + (options.format == Format::kCsv ? ".csv" : ".npy"));
  const OutputFile::Claim claim = file.claim();
  if (claim != OutputFile::Claim::kOurs) return claim;
  SampleFile shard(path, info);
  const OutputRows rows(options.format, model, info);
  std::vector<uint8_t> batch;
  file.write(rows.header(shard.num_samples()));
  for (int64_t first = 0; first < shard.num_samples(); first += options.batch) {
    const int64_t count = std::min(options.batch, shard.num_samples() - first);
    shard.read(first, count, batch);
    file.write(rows.of_batch(first, count, answer(model, info, batch, count).data()));
  }
  file.finish();
  return claim;
}

int run_folder(const Options& options, const lbq_model* model, const lbq_model_info& info) {
  const std::string &in = options.places[1], &out = options.places[2];
  const bool has_many = is_folder(in);
  const size_t slash = in.find_last_of('/');
  const std::vector<std::string> names =
      has_many ? list_shards(in) : std::vector<std::string>{slash == in.npos ? in : in.substr(slash + 1)};
  if (::mkdir(out.c_str(), 0777) != 0 && errno != EEXIST) throw InputError{out + ": " + std::strerror(errno)};
  if (has_many && options.format == Format::kNpy && is_same(in, out))
    throw InputError{out + " holds the samples; answers as .npy would be taken for more of them, take another folder"};
  check_owner(out, info);
  int64_t answered = 0, skipped = 0, busy = 0, failed = 0;
  for (size_t i = options.shard; i < names.size(); i += options.num_shards) {
    try {
      const OutputFile::Claim claim =
          answer_shard(has_many ? in + "/" + names[i] : in, names[i], out, options, model, info);
      ++(claim == OutputFile::Claim::kOurs ? answered : claim == OutputFile::Claim::kDone ? skipped : busy);
    } catch (const InputError& error) {
      std::fprintf(stderr, "lbq-run: %s\n", error.text.c_str());
      ++failed;
    }
  }
  std::fprintf(stderr,
               "lbq-run: %" PRId64 " files answered, %" PRId64 " were before, %" PRId64
               " are with other workers, %" PRId64 " failed\n",
               answered, skipped, busy, failed);
  return failed ? kMistake : busy ? kBusy : kDone;
}

int run_stream(const Options& options, const lbq_model* model, const lbq_model_info& info) {
  if (options.format != Format::kCsv) throw UsageError{"a stream is answered as csv"};
  const SampleSize size(info);
  const OutputRows rows(Format::kCsv, model, info);
  std::vector<uint8_t> batch;
  write_all(STDOUT_FILENO, rows.header(0), "standard output");
  int64_t first = 0;
  StreamPart part;
  do {
    part = read_stream(STDIN_FILENO, size, options.batch, batch);
    if (part.samples > 0) {
      const std::vector<int64_t> logits = answer(model, info, batch, part.samples);
      write_all(STDOUT_FILENO, rows.of_batch(first, part.samples, logits.data()), "standard output");
    }
    first += part.samples;
  } while (part.samples == options.batch);
  if (part.rest > 0)  // after the answers to all that came before it
    throw InputError{"standard input: ends " + std::to_string(part.rest) + " bytes into a sample of " +
                  std::to_string(size.bytes())};
  return kDone;
}

int check(const Options& options) {
  bool is_sound = true;
  for (const std::string& path : options.places) {
    lbq_model* model = nullptr;
    lbq_error_message message;
    const lbq_model_status status = lbq_model_open(path.c_str(), options.sha256, &model, &message);
    const ModelPointer owner(model);
    if (status != LBQ_MODEL_OK) {
      std::printf("%s: %s: %s\n", path.c_str(), lbq_model_status_name(status), message.text);
      is_sound = false;
      continue;
    }
    lbq_model_info info;
    lbq_model_get_info(model, &info);
    const std::string outputs = info.num_outputs == 1 ? "" : " of " + std::to_string(info.num_outputs) + " outputs";
    std::printf("%s: ok: %s uint8 of %" PRId64 " x %" PRId64 " x %" PRId64 ", T = %" PRId64 ", %" PRId64
                " logits%s in units of %.9g\n",
                path.c_str(), info.takes_frames ? "frames" : "still", info.channels, info.height, info.width,
                info.timesteps, info.num_logits, outputs.c_str(), info.logit_scale);
  }
  return is_sound ? kDone : kMistake;
}

int run(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  if (options.only_checks) return check(options);
  lbq_model* model = nullptr;
  lbq_error_message message;
  if (lbq_model_open(options.places[0].c_str(), options.sha256, &model, &message) != LBQ_MODEL_OK)
    throw InputError{options.places[0] + ": " + message.text};
  const ModelPointer owner(model);
  const lbq_model_status status = lbq_model_prepare(model, options.isa, options.threads, &message);
  if (status == LBQ_MODEL_BAD_ARGUMENT) throw UsageError{message.text};
  if (status != LBQ_MODEL_OK) throw InputError{message.text};
  lbq_model_info info;
  lbq_model_get_info(model, &info);
  return options.places.size() == 2 ? run_stream(options, model, info) : run_folder(options, model, info);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes gives the error of a full disk
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "lbq-run: %s\n\n%s", error.text.c_str(), kUsage);
    return kUsageError;
  } catch (const InputError& error) {
    std::fprintf(stderr, "lbq-run: %s\n", error.text.c_str());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lbq-run: there is no memory left; a smaller --batch needs less\n");
  } catch (const std::length_error&) {  // no memory has such a size
    std::fprintf(stderr, "lbq-run: there is no memory left; a smaller --batch needs less\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lbq-run: %s\n", error.what());
  }
  return kMistake;
}
