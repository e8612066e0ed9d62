#include "thread_pool.h"

namespace lbq {

ThreadPool::ThreadPool(int size) {
  try {
    for (int worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { worker_loop(worker); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& run) {
  if (threads_.empty() || count <= 1) {
    for (int64_t task = 0; task < count; ++task) run(task, 0);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run_ = &run;
    count_ = count;
    next_ = 0;
    busy_ = static_cast<int>(threads_.size());
    ++turn_;
  }
  has_work_.notify_all();
  run_tasks(0);
  std::unique_lock<std::mutex> lock(mutex_);
  is_done_.wait(lock, [this] { return busy_ == 0; });
  if (error_) {
    const std::exception_ptr error = error_;
    error_ = nullptr;
    std::rethrow_exception(error);
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      has_work_.wait(lock, [&] { return is_over_ || turn_ != seen; });
      if (is_over_) return;
      seen = turn_;
    }
    run_tasks(worker);
    std::lock_guard<std::mutex> lock(mutex_);
    if (--busy_ == 0) is_done_.notify_one();
  }
}

void ThreadPool::run_tasks(int worker) {
  try {
    for (int64_t task; (task = next_.fetch_add(1)) < count_;) (*run_)(task, worker);
  } catch (...) {
    next_ = count_;
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::current_exception();
  }
}

}  // namespace lbq
