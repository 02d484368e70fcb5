"""Which words does reading PTX offer to the rest of the emulator?"""
