"""Which words does the emulator offer to those who run PTX on a CPU?"""
