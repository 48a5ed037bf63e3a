#include "server/commands/ask/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <iostream>

namespace quire {
namespace {

constexpr int kKeptLines = 500;

char* prompt_of(EditLine* line) {
  void* prompt = nullptr;
  el_get(line, EL_CLIENTDATA, &prompt);
  return static_cast<char*>(prompt);
}

}  // namespace

struct LineReader::Editor {
  Editor() {
    // The editor moves by characters, not by bytes.
    std::setlocale(LC_CTYPE, "");
    line = el_init("quire", stdin, stderr, stderr);
    history = history_init();
    if (line == nullptr || history == nullptr) return;
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kKeptLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 1);  // a signal finds the terminal as it was
    el_set(line, EL_PROMPT, prompt_of);
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(line, nullptr);  // the person's own keys: ~/.editrc
  }
  ~Editor() {
    if (line != nullptr) el_end(line);
    if (history != nullptr) history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  EditLine* line = nullptr;
  History* history = nullptr;
};

LineReader::LineReader() {
  if (::isatty(STDIN_FILENO) == 1) editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

bool LineReader::read(const char* prompt, std::string& line) {
  if (!editor_ || editor_->line == nullptr || editor_->history == nullptr) {
    if (editor_) std::fputs(prompt, stderr);
    return static_cast<bool>(std::getline(std::cin, line));
  }
  el_set(editor_->line, EL_CLIENTDATA, prompt);
  int count = 0;
  const char* const typed = el_gets(editor_->line, &count);
  if (typed == nullptr || count <= 0) return false;
  line.assign(typed, static_cast<std::size_t>(count));
  if (line.find_first_not_of(" \t\r\n") != std::string::npos) {
    HistEvent event;
    history(editor_->history, &event, H_ENTER, line.c_str());
  }
  if (line.ends_with('\n')) line.pop_back();
  return true;
}

}  // namespace quire
