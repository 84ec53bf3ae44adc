// containers.cpp: new, delete and the containers that call them, below the preload library.
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

struct alignas(4096) Aligned {
    unsigned char bytes[1 << 20];
};

int main()
{
    std::vector<double> grown;
    for (int at = 0; at < 2000000; at++)
        grown.push_back(at);
    std::map<int, std::string> strings;
    for (int at = 0; at < 200; at++)
        strings[at] = std::string(1000 * (at + 1), 'a' + at % 26);
    auto aligned = std::make_unique<Aligned>();
    bool refused = false;
    try {
        std::vector<char> impossible(PTRDIFF_MAX);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    size_t total = 0;
    for (auto &[number, text] : strings)
        total += text.size() * static_cast<size_t>(number);
    std::printf("%.0f %zu %d %d\n", std::accumulate(grown.begin(), grown.end(), 0.0), total,
                static_cast<int>(reinterpret_cast<uintptr_t>(aligned.get()) % 4096), refused);
}
