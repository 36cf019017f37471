import sys

name = input("Who? ")
print("hello", name)
print(sum(int(n) for n in sys.stdin.readline().split()))
print(repr(sys.stdin.read()), sys.stdin.buffer.read(), sys.stdin.isatty())
try:
    input()
except EOFError as e:
    print("EOFError:", e)
