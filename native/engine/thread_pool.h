// A fixed pool of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lbq {

class ThreadPool {
 public:
  explicit ThreadPool(int size);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Run every task once on any of the threads (the caller is worker 0) and wait for all of them.
  void parallel_for(int64_t count, const std::function<void(int64_t task, int worker)>& run);

 private:
  void worker_loop(int worker);
  void run_tasks(int worker);
  void stop();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable has_work_, is_done_;
  const std::function<void(int64_t, int)>* run_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t turn_ = 0;
  int busy_ = 0;
  bool is_over_ = false;
  std::exception_ptr error_;
};

}  // namespace lbq
