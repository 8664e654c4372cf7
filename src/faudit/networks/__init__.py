"""Networks: any module seen as embed -> blocks -> readout, and a small zoo of audited ones."""
