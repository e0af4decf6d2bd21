"""The small shipped models, one folder each, and the recipe of the lade-code pair; knows nothing of decoding.

corpus    gathers documents, trains the tokenizer, writes token files       python -m lade.models.pretrained.corpus
train     trains a target, or with --teacher distils a draft from it        python -m lade.models.pretrained.train
measure   measures a trained pair                                           python -m lade.models.pretrained.measure
card      writes the model cards from these figures                         python -m lade.models.pretrained.card
"""
