import sys

name = input("Who? ")
print("hello", name)
print(sum(int(n) for n in sys.stdin.readline().split()))
print(sys.stdin.buffer.read())
try:
    input()
except EOFError as e:
    print("EOFError:", e)
