// Runs every test whose name contains the first argument, or all tests: gpu_suite [part of a name]
// Exit status: 0 all passed, 1 some failed, 3 no test has such a name.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  int run = 0;
  std::vector<std::string> failed;
  for (const testing::Case& test : testing::cases()) {
    if (test.name.find(part) == std::string::npos) continue;
    ++run;
    testing::failures() = 0;
    test.body();
    if (testing::failures() > 0) failed.push_back(test.name);
    std::cout << (testing::failures() > 0 ? "failed  " : "ok      ") << test.name << std::endl;
  }
  std::cout << run - failed.size() << " of " << run << " tests passed" << std::endl;
  for (const std::string& name : failed) std::cout << "failed: " << name << std::endl;
  if (run == 0) return 3;
  return failed.empty() ? 0 : 1;
}
